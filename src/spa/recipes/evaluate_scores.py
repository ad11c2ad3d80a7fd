"""Compute the metrics of an evaluation: Pass@k and rollout metrics, compared with the optimum and
the reference policies."""

from collections.abc import Sequence
from typing import Any

from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.envs.cards import mean_optimum, mean_success
from spa.envs.reference import REFERENCES
from spa.evaluation.aggregate import play_report
from spa.evaluation.outcomes import Group
from spa.formats.registry import format_of
from spa.policies.named import policy_names
from spa.recipes.evaluate_puzzles import Puzzle, card_of
from spa.recipes.policies import Target
from spa.types import SamplingParams


def settings(cfg: Config, sampling: SamplingParams, api: str | None) -> dict[str, Any]:
    """Return the settings to record in the result file.

    `api` is the entry of `model_info` that is evaluated, if any. Its `generation_kwargs` override
    `sampling`. A null among them means the server's default.
    """
    val = cfg.es_manager.val
    given = dict(cfg.model_info[api].generation_kwargs) if api else {}
    if "max_completion_tokens" in given:
        given["max_tokens"] = given["max_completion_tokens"]
    turns = {tag: cfg.max_turn(tag) for tag in val.env_configs.tags}
    return {
        "groups": val.env_groups,
        "samples": val.group_size,
        "seed": cfg.seed.val,
        "mode": cfg.ctx_manager.mode,
        "state_text": cfg.state_text,
        "history": cfg.ctx_manager.history,
        # A tag may have its own limit.
        "max_turn": turns
        if len(set(turns.values())) > 1
        else cfg.max_turn(val.env_configs.tags[0]),
        "max_actions_per_turn": cfg.agent_proxy.max_actions_per_turn,
        **{
            name: given.get(name, getattr(sampling, name))
            for name in ("temperature", "top_p", "top_k", "max_tokens")
        },
    }


def writes_states(cfg: Config, target: Target) -> bool:
    """Return whether responses contain observations and predictions to score. Policies without a
    model write only placeholders for them."""
    return cfg.ctx_manager.mode == "add_worldmodel" and target.name not in policy_names()


def tag_result(
    cfg: Config,
    tag: str,
    groups: list[Group],
    ks: Sequence[int],
    *,
    states: bool,
    puzzles: Sequence[Puzzle],
) -> dict[str, Any]:
    """Return the metrics of a tag, with the success rates of the optimal policy and of the
    reference policies.

    These rates come from the tag's reference scores if there are any, otherwise they are averages
    over `puzzles`. World-model metrics are included if responses contain states (`states`).
    """
    card = card_of(cfg, tag)
    report = play_report(groups, ks=ks, world_model=states)
    report = format_of(cfg.agent_proxy.response_format).measured(report)
    units = {puzzle.difficulty_unit for puzzle in puzzles} - {TextEnv.difficulty_unit}
    report["difficulty_is"] = next(iter(units), TextEnv.difficulty_unit)
    if card is not None:
        optimum = card.optimum
        found = {name: getattr(card, f"{name}_success") for name in REFERENCES}
    else:
        optimum = mean_optimum([puzzle.best for puzzle in puzzles])
        optimum = None if optimum is None else round(optimum, 4)
        found = {
            name: mean_success([puzzle.references.get(name) for puzzle in puzzles])
            for name in REFERENCES
        }
    if optimum is not None:
        report["optimum"] = optimum
    report |= {f"{name}_success": value for name, value in found.items()}
    if optimum and "pass@1" in report:
        report["percent_of_optimum"] = round(100 * report["pass@1"]["mean"] / optimum, 3)
    return report
