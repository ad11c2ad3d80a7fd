"""Build the prompts of an environment tag from the configuration. Needs no torch, because `spa env
play` uses it too."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from spa.config.schema import Config, EnvSpec
from spa.envs.base import TextEnv
from spa.envs.limits import MAKING_S, SLOW, EnvFault, boundary, checked_text
from spa.envs.registry import make_env
from spa.envs.workers import EnvWorkers
from spa.errors import ConfigError
from spa.formats.blocks import contains_marker
from spa.prompts.render import Prompter, PromptMode, sample_response


def make_prompter(
    cfg: Config, spec: EnvSpec, mode: PromptMode, *, env: TextEnv | None = None
) -> Prompter:
    """Build the prompter of one tag. In the world-model format, prompts show a sample response if
    `ctx_manager.example` is set. The sample is made by playing in `env`, which is reset for this,
    or else in a new environment."""
    proxy = cfg.agent_proxy
    max_turn = spec.max_turn or proxy.max_turn
    instruction = spec.env_instruction
    if mode == "add_worldmodel":
        instruction = spec.env_instruction_add_worldmodel or spec.env_instruction
    settings: dict[str, Any] = {
        "mode": mode,
        "state_text": cfg.state_text,
        "enable_think": proxy.enable_think,
        "action_sep": spec.action_sep or proxy.action_sep,
        "max_turn": max_turn,
        # No prompt allows more actions in a turn than in the whole episode.
        "max_actions_per_turn": min(proxy.max_actions_per_turn, spec.max_actions_per_traj),
        # No prompt allows more actions in an episode than its turns allow together.
        "max_actions_per_traj": min(
            spec.max_actions_per_traj, max_turn * proxy.max_actions_per_turn
        ),
        "max_words": spec.max_tokens,
        "instruction": instruction,
        "show_legal_actions": spec.show_legal_actions,
        "placeholders": cfg.ctx_manager.placeholders,
        "response_format": proxy.response_format,
        "imagined_plans": proxy.imagined_plans,
        # World-model examples are whole conversations; only base prompts can do without history.
        "history": cfg.ctx_manager.history or mode == "add_worldmodel",
    }
    # Instructions that already show the format, like those of the original code, need no second
    # example.
    if (
        mode == "add_worldmodel"
        and cfg.ctx_manager.example
        and not contains_marker(instruction or "")
    ):
        with first_puzzle(cfg, spec) if env is None else nullcontext(env) as game:
            settings["example"] = sample_response(game, Prompter(**settings))
    return Prompter(**settings)


@contextmanager
def first_puzzle(cfg: Config, spec: EnvSpec) -> Iterator[TextEnv]:
    """Make an environment and yield it with its first puzzle. It runs in its own process if
    `es_manager.env_workers` is set.

    Raises ConfigError if the environment fails, either here or while the caller uses it.
    """
    limit = cfg.es_manager.env_timeout_s
    workers = EnvWorkers(1, timeout_s=limit) if cfg.es_manager.env_workers else None
    make = workers.make if workers is not None else make_env
    try:
        # A worker process has its own time limit.
        with boundary(
            "the first puzzle",
            None if limit is None or workers is not None else limit + MAKING_S,
            advice=SLOW,
        ):
            env = make(spec.env_type, spec.env_config)
            env.reset(seed=0)
            checked_text(env.state_text(cfg.state_text), "state_text")
            yield env
    except EnvFault as error:
        raise ConfigError(
            f"The environment {spec.env_type} cannot start a puzzle: {error}"
        ) from error
    finally:
        if workers is not None:
            workers.close()


def check_puzzles(cfg: Config, tags: Iterable[str], check: Callable[[TextEnv, str], None]) -> None:
    """Call `check(env, tag)` on the first puzzle of every tag. Raises ConfigError if a puzzle
    cannot be made or `check` raises it."""
    for tag in tags:
        with first_puzzle(cfg, cfg.custom_envs[tag]) as env:
            check(env, tag)


def require_state_value(env: TextEnv, tag: str, *, instead: str) -> None:
    """Raise ConfigError if the environment cannot compute the value of a state from its text.
    `instead` ends the error message with advice, such as a setting that needs no values."""
    if env.state_value(env.world_state_text("grid_and_coords")) is None:
        raise ConfigError(
            f"The environment {tag} has no state values (TextEnv.state_value), so {instead}"
        )
