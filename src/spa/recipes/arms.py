"""The methods that `spa compare` sets side by side, each as a change of one configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from spa.config.schema import Config
from spa.envs.base import StateText
from spa.errors import ConfigError
from spa.recipes.copies import copies_of

Arm = Literal["vanilla", "vanilla_wm", "vanilla_grid", "state_estimation", "spa", "spa_shuffled"]

DESCRIPTIONS: dict[str, str] = {
    "vanilla": "PPO from the base model, base format",
    "vanilla_wm": "PPO from the base model, world-model format, no SFT",
    "vanilla_grid": "PPO from the base model, base format, drawing only",
    "state_estimation": "PPO from the base model, base format, drawing and coordinates",
    "spa": "self-play, world-model SFT, PPO",
    "spa_shuffled": "control: SFT on next states of other turns, then PPO",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an arm does: from which model PPO starts, in which format it plays, what it sees."""

    fine_tuned: bool
    shuffled: bool
    base_format: bool
    state_text: StateText | None  # None: the configuration's


BASELINES = ("vanilla", "vanilla_wm", "vanilla_grid", "state_estimation")
"""What `spa baseline` trains."""

PLANS: dict[str, Plan] = {
    "vanilla": Plan(fine_tuned=False, shuffled=False, base_format=True, state_text=None),
    "vanilla_wm": Plan(fine_tuned=False, shuffled=False, base_format=False, state_text=None),
    "vanilla_grid": Plan(fine_tuned=False, shuffled=False, base_format=True, state_text="grid"),
    "state_estimation": Plan(fine_tuned=False, shuffled=False, base_format=True, state_text="grid_and_coords"),
    "spa": Plan(fine_tuned=True, shuffled=False, base_format=False, state_text=None),
    "spa_shuffled": Plan(fine_tuned=True, shuffled=True, base_format=False, state_text=None),
}


def arm_config(cfg: Config, arm: str, directory: Path) -> Config:
    """The configuration of one arm, living in `directory`.

    Arms without fine-tuning in the base format play the base prompts; `vanilla_wm` plays the world-model prompts;
    the fine-tuned arms play the format that the preset chose (`ctx_manager.mode`).
    """
    plan = PLANS[arm]
    mode = "base" if plan.base_format else "add_worldmodel"
    if plan.fine_tuned:
        mode = cfg.ctx_manager.mode
    return replace(
        cfg,
        state_text=plan.state_text or cfg.state_text,
        ctx_manager=replace(cfg.ctx_manager, mode=mode),
        generate=replace(cfg.generate, shuffle_next_states=plan.shuffled, output_dir=None),
        trainer=replace(
            cfg.trainer,
            run_dir=str(directory),
            default_local_dir=str(directory / "ppo"),
            default_hdfs_dir=copies_of(cfg, directory),
            experiment_name=f"{cfg.trainer.experiment_name}-{arm}",
        ),
    )


def baseline_config(cfg: Config, method: str, chosen: Sequence[str]) -> Config:
    """The configuration of PPO alone by one of the baselines, in a folder of its own inside the run's.

    `chosen`: the overrides that the user gave. Raises ConfigError if one of them contradicts the method. PPO's
    checkpoints go where `trainer.default_local_dir` says if that was chosen.
    """
    folder = Path(cfg.trainer.run_dir) / method
    arm = arm_config(cfg, method, folder)
    keys = {text.partition("=")[0].lstrip("+") for text in chosen}
    if "ctx_manager.mode" in keys and cfg.ctx_manager.mode != arm.ctx_manager.mode:
        other = next(name for name in BASELINES if PLANS[name].base_format != PLANS[method].base_format)
        raise ConfigError(
            f"ctx_manager.mode={cfg.ctx_manager.mode} contradicts the baseline {method}, which plays in the mode "
            f"{arm.ctx_manager.mode}. Leave it out, or take the baseline {other} (the variable MODE sets this key too)."
        )
    if keys & {"state_text", "render_mode"} and cfg.state_text != arm.state_text:
        raise ConfigError(
            f"state_text={cfg.state_text} contradicts the baseline {method}, which is shown {arm.state_text}. Leave it "
            "out, or take the baseline vanilla (the variable RENDER_MODE sets this key too)."
        )
    if "trainer.default_local_dir" in keys:
        arm = replace(arm, trainer=replace(arm.trainer, default_local_dir=cfg.trainer.default_local_dir))
    return arm


def seeded(cfg: Config, index: int) -> Config:
    """The same experiment with other seeds and other validation puzzles; index 0 is the configuration as it is."""
    return replace(
        cfg,
        seed=replace(cfg.seed, train=cfg.seed.train + 1_000_000 * index, val=cfg.seed.val + 100_000 * index),
        sft=replace(cfg.sft, trainer=replace(cfg.sft.trainer, seed=cfg.sft.trainer.seed + index)),
    )
