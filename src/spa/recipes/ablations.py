"""The methods that experiments set side by side: the recipe, its baselines, and the recipe with one thing changed.

Each is a few overrides of a configuration; `spa ablate NAME CONFIG` runs one of them beside the recipe itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.options import nearest
from spa.errors import ConfigError
from spa.recipes.arms import seeded
from spa.recipes.grid import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a method changes. `overrides` are of the whole training, `world_model` of stages 1 and 2 alone, `ppo` of
    stage 3 alone; without `fine_tuned`, PPO starts from the base model."""

    description: str
    overrides: tuple[str, ...] = ()
    world_model: tuple[str, ...] = ()
    ppo: tuple[str, ...] = ()
    fine_tuned: bool = True


REFERENCE = "spa"

BASELINES: Mapping[str, Method] = {
    "spa": Method(description="the recipe: self-play, world-model SFT, PPO"),
    "vanilla": Method(
        description="PPO from the base model, base format, states as the recipe shows them",
        overrides=("ctx_manager.mode=base",),
        fine_tuned=False,
    ),
    "vanilla_grid": Method(
        description="PPO from the base model, base format, drawings only",
        overrides=("ctx_manager.mode=base", "state_text=grid"),
        fine_tuned=False,
    ),
    "state_estimation": Method(
        description="PPO from the base model, base format, drawings and coordinates",
        overrides=("ctx_manager.mode=base", "state_text=grid_and_coords"),
        fine_tuned=False,
    ),
    "vanilla_wm": Method(
        description="PPO from the base model, world-model format, no SFT",
        overrides=("ctx_manager.mode=add_worldmodel",),
        fine_tuned=False,
    ),
}

_ALL_EPISODES = (
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
)

ABLATIONS: Mapping[str, Method] = {
    "masked_states": Method(description="SFT without loss on the states", overrides=("sft.data.loss_on=no_states",)),
    "states_only": Method(description="SFT with loss on the states alone", overrides=("sft.data.loss_on=states_only",)),
    "believed_states": Method(
        description="SFT on the states that the model believed, not the true ones",
        overrides=("generate.states=believed",),
    ),
    "random_coordinates": Method(
        description="SFT on random coordinates in the right format", overrides=("generate.states=random_coords",)
    ),
    "shuffled_states": Method(
        description="SFT on true next states of other turns", overrides=("generate.shuffle_next_states=true",)
    ),
    "random_data": Method(
        description="world-model data of uniformly random play", overrides=("generate.policy=random",)
    ),
    "mixed_data": Method(description="self-play with half of the turns at random", overrides=("generate.epsilon=0.5",)),
    "expert_data": Method(description="world-model data of the solver's play", overrides=("generate.policy=expert",)),
    "mixed_expert_data": Method(
        description="the solver's play with half of the turns at random",
        overrides=("generate.policy=expert", "generate.epsilon=0.5"),
    ),
    "success_data": Method(
        description="self-play, only turns of successful episodes", overrides=("generate.success_only=true",)
    ),
    **{
        f"sft_epochs_{epochs}": Method(
            description=f"SFT of {epochs} epoch{'s' if epochs > 1 else ''}",
            overrides=(
                f"sft.trainer.total_epochs={epochs}",
                "sft.trainer.total_training_steps=null",
                "gate.enable=false",
            ),
        )
        for epochs in range(1, 6)
    },
    "group_size_4": Method(
        description="PPO in groups of 4 instead of 8, twice as many puzzles",
        ppo=("es_manager.train.env_groups=64", "es_manager.train.group_size=4"),
    ),
    "group_size_16": Method(
        description="PPO in groups of 16 instead of 8, half as many puzzles",
        ppo=("es_manager.train.env_groups=16", "es_manager.train.group_size=16"),
    ),
    "no_filter": Method(description="PPO on all groups, also those without a spread", ppo=_ALL_EPISODES),
    "answer_only": Method(
        description="PPO loss on the tokens of the answers alone",
        ppo=("actor_rollout_ref.actor.loss_mask=answer_only",),
    ),
    "base_format": Method(description="PPO in the base format after SFT", ppo=("ctx_manager.mode=base",)),
    "world_model_format": Method(
        description="PPO in the world-model format after SFT", ppo=("ctx_manager.mode=add_worldmodel",)
    ),
    "online_world_model": Method(
        description="no SFT; a reward for right observations and predictions during PPO",
        overrides=(
            "ctx_manager.mode=add_worldmodel",
            "agent_proxy.world_model_reward.observation=0.5",
            "agent_proxy.world_model_reward.prediction=0.5",
        ),
        fine_tuned=False,
    ),
}

TRANSFERS: Mapping[str, Method] = {
    f"from_{tag}": Method(
        description=f"world model learnt on {tag}",
        world_model=tuple(
            f"es_manager.{split}.env_configs={{tags: [{tag}], n_groups: null}}" for split in ("train", "val")
        ),
    )
    for tag in ("FrozenLakeNoSlip", "FrozenLake", "SimpleSokoban", "Sudoku")
}

METHODS: Mapping[str, Method] = {**BASELINES, **ABLATIONS, **TRANSFERS}


def method(name: str) -> Method:
    """The method of this name; raises ConfigError that names the nearest one if there is none."""
    if name not in METHODS:
        raise ConfigError(f"there is no ablation {name!r}; {nearest(name, METHODS)} (`spa ablate --list` has them all)")
    return METHODS[name]


def training(name: str, preset: str, overrides: Sequence[str], *, seed: int, label: str) -> Training:
    """A method on a configuration as training number `seed`, counted from 0.

    Raises ConfigError if the method and the configuration do not go together.
    """
    chosen = method(name)
    world_model: Config | None = None
    if chosen.fine_tuned:
        world_model = seeded(_loaded(preset, (*overrides, *chosen.overrides, *chosen.world_model)), seed)
    ppo = seeded(_loaded(preset, (*overrides, *chosen.overrides, *chosen.ppo)), seed)
    return Training(label=label, world_model=world_model, ppo=ppo)


@lru_cache(maxsize=256)
def _loaded(preset: str, overrides: tuple[str, ...]) -> Config:
    """A grid asks for the same configuration once per seed, and reading one takes a while."""
    return load_config(preset, overrides)
