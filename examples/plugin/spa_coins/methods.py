"""The method `short_sight`: `spa compare demo --methods spa,short_sight`."""

from spa.methods import Method

short_sight = Method(
    description="as SPA, but later rewards count less in PPO",
    ppo=("algorithm.gamma=0.9",),
)
