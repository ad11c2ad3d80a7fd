"""The methods that experiments compare: the recipe, its baselines, and the recipe with one change.

A method is a small set of overrides of a configuration. `METHODS` contains the built-in methods. A
user's own `Method` is named by its import path, `module:name`.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from spa.config.load import load_config, seeded
from spa.config.schema import Config
from spa.errors import ConfigError, nearest
from spa.formats.registry import format_of
from spa.formats.search import BreadthFirst
from spa.methods import NO_EXAMPLES, WRITTEN, Method
from spa.models.precision import precision_of, with_precision
from spa.plugins import defined_by_methods, load_plugin, load_setting, plugins, response_formats
from spa.recipes.pipeline import every_folder, stage_folders
from spa.run.copies import copies_of

log = logging.getLogger(__name__)

REFERENCE = "spa"
BASELINES = ("vanilla", "vanilla_wm", "vanilla_grid", "state_estimation")
"""Methods that `spa run --method` accepts besides SPA. They run only PPO."""
SHUFFLED = "_shuffled"
"""Suffix that names the control of a method. A control is fine-tuned on next states of other
turns."""
LONGER = re.compile(r"(.+)_x([1-9]\d*)")
"""Matches NAME_xN, which is method NAME with N times the PPO steps: a baseline for methods that
sample more tokens."""

_RECIPE: Mapping[str, Method] = {
    "vanilla": Method(
        description="PPO from the base model, with responses in base format (without states)",
        overrides=("ctx_manager.mode=base",),
        fine_tuned=False,
    ),
    "vanilla_wm": Method(
        description="PPO from the base model without SFT, with responses in world-model format (with states)",
        overrides=("ctx_manager.mode=add_worldmodel",),
        fine_tuned=False,
    ),
    # The paper's two baselines without SFT. Plain RL shows only the grid, state-estimation RL also
    # shows coordinates.
    "vanilla_grid": Method(
        description="PPO from the base model, with responses in base format and each state as a "
        "grid without coordinates",
        overrides=("ctx_manager.mode=base", "state_text=grid"),
        fine_tuned=False,
    ),
    "state_estimation": Method(
        description="PPO from the base model, with responses in base format and each state as a grid with coordinates",
        overrides=("ctx_manager.mode=base", "state_text=grid_and_coords"),
        fine_tuned=False,
    ),
    # The gate and replay are off, because the responses contain no states that the gate could
    # measure or replay could train on.
    "vanilla_format": Method(
        description="self-play, then SFT on the self-play conversations in base format (without states), then PPO",
        overrides=("ctx_manager.mode=base", "generate.example_format=base", "gate.enable=false"),
        ppo=(NO_EXAMPLES,),
    ),
    "spa": Method(description="self-play, then world-model SFT, then PPO"),
    "spa_shuffled": Method(
        description="shuffled-next-state control of spa: every world-model example has the next state of another turn",
        overrides=("generate.shuffle_next_states=true",),
    ),
}

# Disables the rollout filter: every group is kept, even one without reward variance.
_ALL_EPISODES = (
    "actor_rollout_ref.rollout.rollout_filter_type=std",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
)

_ABLATIONS: Mapping[str, Method] = {
    # Separates the effect of the format from that of the states: the examples are the same, but the
    # loss covers only response tokens outside the states.
    "masked_states": Method(
        description="method spa, but SFT computes no loss on the tokens of states",
        overrides=("sft.data.loss_on=no_states",),
    ),
    "states_only": Method(
        description="method spa, but SFT computes the loss on the tokens of states only",
        overrides=("sft.data.loss_on=states_only",),
    ),
    "predicted_states": Method(
        description="method spa, but SFT examples contain states that the model predicted instead of true states",
        overrides=("generate.states=model",),
    ),
    # Keeps the format, the words and the grids of the states; only their coordinates are random.
    "random_coordinates": Method(
        description="method spa, but the states in SFT examples have random coordinates in the right format",
        overrides=("generate.states=random_coords",),
    ),
    "shuffled_states": _RECIPE["spa_shuffled"],  # its name in the paper's tables
    "random_data": Method(
        description="method spa, but SFT data comes from uniformly random actions instead of self-play",
        overrides=("generate.policy=random",),
    ),
    "mixed_data": Method(
        description="method spa, but self-play takes random actions in half of the turns",
        overrides=("generate.epsilon=0.5",),
    ),
    "expert_data": Method(
        description="method spa, but SFT data comes from the actions of a solver instead of self-play",
        overrides=("generate.policy=expert",),
    ),
    "mixed_expert_data": Method(
        description="method spa, but SFT data comes from a solver in half of the turns and from "
        "random actions in the other half",
        overrides=("generate.policy=expert", "generate.epsilon=0.5"),
    ),
    "success_data": Method(
        description="method spa, but SFT uses only the turns of successful self-play episodes",
        overrides=("generate.success_only=true",),
    ),
    **{
        # The gate is off, because it could stop a run with few epochs, whose effect is measured
        # here. The number of steps follows from the epochs.
        f"sft_epochs_{epochs}": Method(
            description=f"method spa, but with {epochs} epoch{'s' if epochs > 1 else ''} of SFT",
            overrides=(
                f"sft.trainer.total_epochs={epochs}",
                "sft.trainer.total_training_steps=null",
                "gate.enable=false",
            ),
        )
        for epochs in range(1, 6)
    },
    **{
        f"group_size_{size}": Method(
            description=f"method spa, but PPO samples groups of {size} episodes, as many episodes in each step",
            group_size=size,
        )
        for size in (4, 16)
    },
    "no_filter": Method(
        description="method spa, but PPO also trains on groups whose rewards are all equal",
        ppo=_ALL_EPISODES,
    ),
    "answer_only": Method(
        description="method spa, but PPO computes the loss on the tokens of the answer block only",
        ppo=("actor_rollout_ref.actor.loss_mask=answer_only",),
    ),
    "base_format": Method(
        description="method spa, with PPO in base format (responses without states)",
        ppo=("ctx_manager.mode=base",),
    ),
    "world_model_format": Method(
        description="method spa, with PPO in world-model format (responses with states)",
        ppo=("ctx_manager.mode=add_worldmodel",),
    ),
    # A reward for correct states replaces SFT. This shows whether PPO alone learns to predict
    # states.
    "online_world_model": Method(
        description="PPO from the base model without SFT, with an extra reward for correct "
        "observations and predictions",
        overrides=(
            "ctx_manager.mode=add_worldmodel",
            "agent_proxy.world_model_reward.observation=0.5",
            "agent_proxy.world_model_reward.prediction=0.5",
        ),
        fine_tuned=False,
    ),
}

_RANDOM = "generate.policy=random"
"""Override for random play. It is needed for response formats that the base model may not be able
to write, so that its self-play would give no examples."""
_CHOOSE = (
    "agent_proxy.response_format=choose_plan",
    _RANDOM,
    "actor_rollout_ref.rollout.response_length=400",
    "actor_rollout_ref.rollout.max_model_len=2048",
    "sft.data.max_length=2048",
)

_SEARCH = (*WRITTEN, "agent_proxy.response_format=search")

_PLAYED = (
    "ctx_manager.history=true",
    "agent_proxy.response_format=plan_first",
    _RANDOM,
    "generate.search.dynamics=simulator",
    "generate.rounds=1",
    "generate.later_batches=null",
)
"""Overrides that replace written searches by random play, for a preset whose model writes
searches."""

_WRITTEN: Mapping[str, Method] = {
    "search_simulator": Method(
        description="SFT on responses that write out a breadth-first search over the true moves of the game, then PPO",
        overrides=_SEARCH,
        ppo=(NO_EXAMPLES,),
    ),
    "search_model": Method(
        description="SFT on responses that write out a breadth-first search over moves that the "
        "model predicts, then PPO",
        overrides=(*_SEARCH, "generate.search.dynamics=model", "generate.rounds=2"),
        ppo=(NO_EXAMPLES,),
    ),
    "search_dealt": Method(
        description="control of the method search_simulator, with search results permuted among "
        "the actions of each state",
        overrides=(*_SEARCH, "generate.search.thoughts=dealt"),
        ppo=(NO_EXAMPLES,),
    ),
    "search_other_puzzle": Method(
        description="control of the method search_simulator, with the search of another puzzle but the correct answer",
        overrides=(*_SEARCH, "generate.search.thoughts=other_puzzle"),
        ppo=(NO_EXAMPLES,),
    ),
    "path_only": Method(
        description="control of the method search_simulator, with the path to the goal instead of the search",
        overrides=(*_SEARCH, "generate.search.thoughts=path"),
        ppo=(NO_EXAMPLES,),
    ),
    "actions_only": Method(
        description="control of the method search_simulator, with the same actions but without the written search",
        overrides=(*_SEARCH, "generate.search.thoughts=none", "agent_proxy.enable_think=false"),
        ppo=(NO_EXAMPLES,),
    ),
    "random_format": Method(
        description="SFT on conversations with random actions in base format, then PPO (baseline "
        "of the preset smol_frozen_lake)",
        overrides=(
            *_PLAYED,
            "ctx_manager.mode=base",
            "generate.example_format=base",
            "gate.enable=false",
        ),
        ppo=(NO_EXAMPLES,),
    ),
    # Uses the format and replay settings of the preset smol_frozen_lake_states. All other settings
    # are those of the search methods.
    "random_states": Method(
        description="world-model SFT on conversations with random actions, then PPO with replayed "
        "examples (written states instead of a written search)",
        overrides=(
            *_PLAYED,
            "ctx_manager.mode=add_worldmodel",
            "generate.example_format=world_model",
            "gate.enable=true",
        ),
        ppo=(
            "actor_rollout_ref.actor.loss_mask=no_states",
            "actor_rollout_ref.actor.replay.examples=8",
            "actor_rollout_ref.actor.replay.loss_on=states_only",
        ),
    ),
}

# The search methods for each other search format. Their names begin with the name of the format.
_OTHER_SEARCHES: Mapping[str, Method] = {
    f"{form.name}_{name.removeprefix('search_')}": replace(
        written,
        description=f"method {name}, with responses in the format {form.name}",
        overrides=(*written.overrides, *form.overrides()),
    )
    for form in response_formats().values()
    if isinstance(form, BreadthFirst) and form.name != "search"
    for name, written in _WRITTEN.items()
    if "agent_proxy.response_format=search" in written.overrides
}

# docs/methods.md has equations and sources of these methods. The method `planned` is described in
# docs/recipe.md.
_FIELD: Mapping[str, Method] = {
    "branched_data": Method(
        description="method spa, but SFT data contains the next state of every action in every visited state",
        overrides=("generate.policy=counterfactual",),
    ),
    "planned": Method(
        description="method spa, but with a second round of self-play that plans actions with the learned model",
        overrides=("generate.rounds=2", "generate.imagine.n=8", "generate.imagine.depth=3"),
    ),
    "scout_data": Method(
        description="method spa, but SFT data comes from tabular Q-learning, which trains on each "
        "puzzle before playing it",
        overrides=("generate.policy=q_learning",),
    ),
    "plan_first": Method(
        description="method spa, but responses write the plan before the prediction, and SFT data "
        "comes from random actions",
        overrides=("agent_proxy.response_format=plan_first", _RANDOM),
    ),
    "answer_first": Method(
        description="method spa, but responses write the answer before the prediction, and SFT "
        "data comes from random actions",
        overrides=("agent_proxy.response_format=answer_first", _RANDOM),
    ),
    "choose_plan": Method(
        description="method spa, but responses predict the next states of two plans and choose a "
        "plan, and SFT data comes from random actions",
        overrides=_CHOOSE,
    ),
    "wm_ppo": Method(
        description="method choose_plan, with PPO advantages that use predicted states (a reconstruction of WM-PPO)",
        overrides=_CHOOSE,
        ppo=("ctx_manager.mode=add_worldmodel", "algorithm.imagined_advantage=0.5"),
    ),
    "rwml": Method(
        description="method spa, with a PPO reward for predictions with a changed-cell F1 above 0.8 (RWML)",
        ppo=(
            "ctx_manager.mode=add_worldmodel",
            "agent_proxy.world_model_reward.prediction=0.2",
            "agent_proxy.world_model_reward.within=0.2",
        ),
    ),
    "free_beliefs": Method(
        description="method spa, but PPO computes no loss on the tokens of states",
        ppo=("actor_rollout_ref.actor.loss_mask=no_states",),
    ),
    "gigpo": Method(
        description="method spa, but PPO uses group-in-group advantages (GiGPO)",
        ppo=("algorithm.adv_estimator=gigpo", "agent_proxy.use_turn_scores=true"),
    ),
    "turn_rloo": Method(
        description="method spa, but PPO computes advantages from leave-one-out returns per turn",
        ppo=("algorithm.adv_estimator=turn_rloo", "agent_proxy.use_turn_scores=true"),
    ),
    "turn_ppo": Method(
        description="method spa, but the PPO critic estimates one value per turn (Turn-PPO)",
        ppo=("algorithm.adv_estimator=turn_gae", "agent_proxy.use_turn_scores=true"),
    ),
}

# Only self-play and SFT use the other environment. PPO and its validation use the configured one.
_TRANSFERS: Mapping[str, Method] = {
    f"from_{tag}": Method(
        description=f"method spa, with self-play and SFT in the environment {tag} and PPO in the "
        "configured environment",
        world_model=tuple(
            f"es_manager.{split}.env_configs={{tags: [{tag}], n_groups: null}}"
            for split in ("train", "val")
        ),
    )
    for tag in ("FrozenLakeNoSlip", "FrozenLake", "SimpleSokoban", "Sudoku")
}

METHODS: Mapping[str, Method] = {
    **_RECIPE,
    **_ABLATIONS,
    **{name: arm for arms in defined_by_methods("METHODS").values() for name, arm in arms.items()},
    **_FIELD,
    **_WRITTEN,
    **_OTHER_SEARCHES,
    **_TRANSFERS,
}


def method_names() -> list[str]:
    """Return the names of all methods: first built-in methods, then methods that other packages
    register."""
    return list(dict.fromkeys((*METHODS, *plugins("methods"))))


def methods() -> dict[str, Method]:
    """Return all methods by name."""
    return {name: method(name) for name in method_names()}


def method(name: str) -> Method:
    """Look up a method by name. `module:name` loads a user's own method, also from the working
    directory. NAME_shuffled is the shuffled-next-state control of the fine-tuned method NAME.
    NAME_xN is NAME with N times the PPO steps.

    Raises ConfigError, with the nearest known name, if there is no such method.
    """
    if name in METHODS:
        return METHODS[name]
    if name in plugins("methods"):
        return load_plugin("methods", name)
    if ":" not in name and (longer := LONGER.fullmatch(name)):
        # `vanilla_x4_x2` means 8 times the steps: each call removes one suffix.
        shorter = method(longer[1])
        steps = int(longer[2])
        return replace(
            shorter,
            description=f"method {longer[1]}, with {steps} times the configured number of PPO steps",
            steps=shorter.steps * steps,
        )
    # A registered name may itself end with the suffix, so the whole name was looked up first.
    plain = name.removesuffix(SHUFFLED)
    if plain != name and plain in method_names():
        return _control(plain)
    if ":" not in name:
        hint = nearest(name, method_names())
        raise ConfigError(
            f"there is no method {name!r} ({hint}). `spa config list methods` prints all methods. For a method of your "
            "own, give the import path module:name."
        )
    try:
        loaded = load_setting("method", name)
    except ConfigError:
        # `module:name_shuffled` may be an object of the user. It means the control of `module:name`
        # only if there is no such object.
        if plain != name:
            return _control(plain)
        raise
    if not isinstance(loaded, Method):
        raise ConfigError(
            f"method {name!r} is not an object of the class spa.methods.Method. Give the import path of such an object."
        )
    return loaded


def _control(plain: str) -> Method:
    chosen = method(plain)
    if not chosen.has_control:
        raise ConfigError(
            f"method {plain} is not fine-tuned on states, so {plain} has no control with shuffled states. Choose "
            "another method from `spa config list methods`."
        )
    return replace(
        chosen,
        description=f"control of the method {label(plain)}, with next states of other turns in all "
        "world-model examples",
        # A control keeps all changes of its method. The shuffling comes last, so that no other
        # override undoes it.
        overrides=(*chosen.overrides, *METHODS["spa_shuffled"].overrides),
    )


def controls_of(cfg: Config) -> tuple[str, ...]:
    """Return the names of the control methods for a configuration, which depend on its response
    format."""
    return format_of(cfg.agent_proxy.response_format).controls()


def warn_untrained(name: str, chosen: Method, cfg: Config) -> None:
    """Warn if a method without SFT needs a response format that the model was never trained on."""
    if not chosen.fine_tuned:
        format_of(cfg.agent_proxy.response_format).warn_untrained(name)


def label(name: str) -> str:
    """Return the name of a method in folders and tables. For `module:name`, this is the part after
    the colon."""
    return name.rpartition(":")[2]


def in_groups_of(cfg: Config, size: int) -> tuple[str, ...]:
    """Return overrides that set PPO's group size to `size` and keep the number of episodes per tag
    and step in `cfg`. Raises ConfigError if `size` does not divide that number."""
    train = cfg.es_manager.train
    counts = [groups * train.group_size for groups in train.env_configs.n_groups or ()]
    for tag, episodes in zip(train.env_configs.tags, counts, strict=True):
        if episodes % size:
            raise ConfigError(
                f"es_manager.train: each PPO step plays {episodes} episodes of {tag}, which cannot be split into "
                f"groups of {size}. Change env_groups or group_size, or leave out the method group_size_{size}."
            )
    groups = [episodes // size for episodes in counts]
    return (
        f"es_manager.train.env_groups={sum(groups)}",
        f"es_manager.train.group_size={size}",
        f"es_manager.train.env_configs.n_groups={groups}",
        # Self-play uses PPO's group size, because a separate size would have to divide it.
        "generate.group_size=null",
    )


@lru_cache(maxsize=256)
def _read(preset: str, overrides: tuple[str, ...]) -> Config:
    return load_config(preset, overrides)


@lru_cache(maxsize=1024)
def configured(preset: str, overrides: tuple[str, ...], seed: int = 0) -> Config:
    """Return the configuration of training run number `seed`. It is cached, because loading is slow
    and a grid often requests the same configuration."""
    return seeded(_read(preset, overrides), seed)


def placed(cfg: Config, folder: Path, name: str, *, root: Path) -> Config:
    """Return `cfg` with all paths set for method `name` in `folder`, inside the experiment's folder
    `root`."""
    # Copies of checkpoints go to the experiment's remote folder, under the same relative path as in
    # `root`.
    experiment = replace(cfg, trainer=replace(cfg.trainer, run_dir=str(root)))
    configured = replace(
        cfg,
        generate=replace(cfg.generate, output_dir=None),
        sft=replace(
            cfg.sft, trainer=replace(cfg.sft.trainer, default_local_dir=str(folder / "sft"))
        ),
        trainer=replace(
            cfg.trainer,
            run_dir=str(folder),
            default_local_dir=str(folder / "ppo"),
            default_hdfs_dir=copies_of(experiment, folder),
            experiment_name=f"{cfg.trainer.experiment_name}-{name}",
        ),
    )
    # On a CPU, the precision `auto` is resolved here, so that a resumed run keeps its precision on
    # another CPU.
    return with_precision(configured, precision_of(configured, every_folder(configured)))


def of_comparison(cfg: Config) -> Config:
    """If the run folder of `cfg` is a comparison, return the configuration of its method `spa`.

    Return `cfg` unchanged if the folder is not a comparison, or if the run has stages of its own or
    stages outside the folder.
    """
    root = Path(cfg.trainer.run_dir)
    own = stage_folders(cfg)
    # In a comparison with several seeds, the first training run is in `seed_0`.
    folder = next(
        (place for place in (root / REFERENCE, root / "seed_0" / REFERENCE) if place.is_dir()), None
    )
    # The run's own stages take precedence, and stages elsewhere are not part of the comparison.
    if folder is None or any(place.exists() or not place.is_relative_to(root) for place in own):
        return cfg
    return placed(cfg, folder, REFERENCE, root=root)


def baseline_config(preset: str, overrides: Sequence[str], name: str) -> Config:
    """Return the configuration of a baseline that runs PPO alone, in its own folder inside the
    run's.

    PPO's checkpoints go to `trainer.default_local_dir` if an override sets it. Raises ConfigError
    if there is no such baseline, or if one of the user's overrides contradicts it.
    """
    if name not in BASELINES:
        raise ConfigError(
            f"there is no baseline {name!r}; choose from {', '.join(BASELINES)}. "
            "`spa compare --methods` trains every method."
        )
    # The configuration is loaded twice, without and with the overrides of the method. A user's
    # override contradicts the method if its key has different values in the two.
    cfg = load_config(preset, overrides)
    own = load_config(preset, [NO_EXAMPLES, *overrides, *METHODS[name].overrides])
    # `+key=value` adds a key; the `+` is not part of its name.
    keys = {text.partition("=")[0].lstrip("+") for text in overrides}
    if "ctx_manager.mode" in keys and cfg.ctx_manager.mode != own.ctx_manager.mode:
        other = "vanilla" if name == "vanilla_wm" else "vanilla_wm"
        raise ConfigError(
            f"ctx_manager.mode={cfg.ctx_manager.mode} contradicts the baseline {name}, whose mode is "
            f"{own.ctx_manager.mode}. Leave out the override and the environment variable MODE, or choose the baseline "
            f"{other}."
        )
    if keys & {"state_text", "render_mode"} and cfg.state_text != own.state_text:
        raise ConfigError(
            f"state_text={cfg.state_text} contradicts the baseline {name}, whose state_text is {own.state_text}. Leave "
            "out the override and the environment variable RENDER_MODE, or choose the baseline vanilla."
        )
    warn_untrained(name, METHODS[name], own)
    root = Path(cfg.trainer.run_dir)
    arm = placed(own, root / name, name, root=root)
    if "trainer.default_local_dir" in keys:
        arm = replace(
            arm, trainer=replace(arm.trainer, default_local_dir=cfg.trainer.default_local_dir)
        )
    return arm
