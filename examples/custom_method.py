"""A method of one's own, with the same rights as the shipped ones. In the folder of this file:

spa compare demo "compare.arms=[vanilla,spa,'custom_method:short_sight']"
spa compare demo --methods spa,custom_method:short_sight
"""

from spa.methods import Method

short_sight = Method(
    description="as SPA, but later rewards count less in PPO",
    ppo=("algorithm.gamma=0.9",),
)
