"""Evaluate a policy on unseen puzzles: Pass@1, unbiased Pass@k, and rollout metrics.

Puzzles, noise and sampling are the same as in validation during training (`seed.val`). The last
checkpoint of a run therefore gets the score of its last validation if `trainer.validation_steps` is
1. Set `seed.val` to evaluate on other puzzles. Groups are played in fixed chunks, and each chunk is
saved when it is finished. An interrupted evaluation can therefore be resumed, and writes the same
result, byte for byte.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.config.schema import Config, to_yaml
from spa.envs.eval_sets import EvalSet
from spa.errors import ConfigError, ModelError
from spa.evaluation.aggregate import KS, not_computed
from spa.evaluation.episode_metrics import episode_scores
from spa.evaluation.outcomes import Group, group_of
from spa.install import versions
from spa.models.allocator import release_memory
from spa.models.load import BUILTIN
from spa.models.precision import precision_of, with_precision
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.evaluate_files import EpisodeFile, Store, usage, write_result
from spa.recipes.evaluate_puzzles import Puzzle, unseen_puzzles
from spa.recipes.evaluate_scores import settings, tag_result, writes_states
from spa.recipes.imagination import imagination, imagining, recorder_of
from spa.recipes.policies import (
    Target,
    behind_api,
    has_all_example_files,
    open_target,
    training_hashes,
)
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import fingerprint_of
from spa.run.progress import ProgressLine
from spa.run.watchdog import Watchdog
from spa.types import Engine, Episode, tokens_in

log = logging.getLogger(__name__)

CHUNK = 256
"""Number of responses sampled in parallel. Results depend on it, because the batch size affects
floating-point rounding."""
PUZZLE_COUNT_KEYS = ("es_manager.val.env_groups", "es_manager.val.env_configs.n_groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A resolved evaluation: the policy, the puzzles, and the files of its results."""

    cfg: Config
    target: Target
    worker: setup.RolloutWorker
    puzzles: list[Puzzle]
    known: frozenset[str]  # content hashes of the puzzles that the model was trained on
    seen: int  # number of puzzles that are left out because they are in `known`
    eval_set: EvalSet | None
    identity: Fingerprint
    kept: Store
    episodes: EpisodeFile
    imagined: Path  # file of the planner's records
    responses: Path  # file of API responses


def evaluate_target(
    cfg: Config,
    target: Target,
    *,
    output: Path,
    ks: Sequence[int] | None = None,
    prices: tuple[float, float] | None = None,
    loaded: tuple[Engine, ChatTemplate | None] | None = None,
    eval_set: EvalSet | None = None,
) -> dict[str, Any]:
    """Play the validation groups with the policy `target`, write the result to `output` and return
    it.

    Raises ConfigError for an invalid k, DataError if no puzzle is left to play, ModelError if no
    episode could be completed.

    Args:
        ks: values of k for Pass@k; None: the values in KS up to the group size.
        prices: API prices per million input and output tokens.
        loaded: an engine for `target` that is already loaded, and its chat template. The engine is
            not closed.
        eval_set: evaluation set to play, instead of puzzles sampled by `seed.val`. `cfg` must
            already include the set's `overrides`.
    """
    if ks is None:
        ks = tuple(k for k in KS if k <= cfg.es_manager.val.group_size)
    if not ks or min(ks) < 1:
        raise ConfigError(
            f"pass@k: every k must be at least 1, got {', '.join(map(str, ks)) or 'none'}"
        )
    evaluation = resolve(cfg, target, output, eval_set)
    watchdog = Watchdog(None, cfg.trainer.stall_timeout_s)
    try:
        groups = play_puzzles(evaluation, loaded)
    finally:
        watchdog.close()
    result = score(evaluation, groups, ks, prices)
    write_result(output, result)
    return result


def resolve(cfg: Config, target: Target, output: Path, eval_set: EvalSet | None) -> Evaluation:
    """Select the puzzles to play, and load the groups that an earlier evaluation with the same
    settings has finished."""
    output.parent.mkdir(parents=True, exist_ok=True)
    target = behind_api(cfg, target)
    # On a CPU, `auto` is resolved to a precision here, because the result depends on it.
    cfg = with_precision(cfg, precision_of(replace(cfg, model_path=target.model or cfg.model_path)))
    worker = setup.make_worker(
        cfg,
        None,
        mode=cfg.ctx_manager.mode,
        lost=output.with_suffix(".lost.jsonl"),
        own_rewards=True,
    )
    known = training_hashes(target.run) if target.run else frozenset()
    puzzles, seen = unseen_puzzles(cfg, worker, known, eval_set)
    identity = eval_identity(cfg, target)
    # Saved groups are reused only under the same key, that is, if all settings except the number of
    # groups are equal.
    key = groups_key(identity, side_by_side(cfg))
    if eval_set is not None:
        key = f"{key} {eval_set.digest[:16]}"
    kept = Store(output.with_suffix(".groups.jsonl"), key)
    episodes = EpisodeFile(
        output.with_suffix("") / "trajectories" / "val-000000.jsonl",
        to_yaml(cfg),
        continued=bool(kept),
    )
    return Evaluation(
        cfg=cfg,
        target=target,
        worker=worker,
        puzzles=puzzles,
        known=known,
        seen=seen,
        eval_set=eval_set,
        identity=identity,
        kept=kept,
        episodes=episodes,
        imagined=output.with_suffix(f".imagined-{key[:8]}.jsonl"),
        responses=output.with_suffix(f".responses-{key[:8]}.jsonl"),
    )


def score(
    evaluation: Evaluation,
    groups: list[Group],
    ks: Sequence[int],
    prices: tuple[float, float] | None,
) -> dict[str, Any]:
    """Compute the result of an evaluation, as it is written to the result file. Raises ModelError
    if no episode could be completed."""
    cfg = evaluation.cfg
    target = evaluation.target
    puzzles = evaluation.puzzles
    eval_set = evaluation.eval_set
    # The bundled model was not pretrained on transitions of any puzzle, so its empty list of
    # training puzzles is complete.
    complete = target.name == BUILTIN or (
        target.run is not None and has_all_example_files(target.run)
    )
    trained = sum(puzzle.hash in evaluation.known for puzzle in puzzles)
    result: dict[str, Any] = {
        "policy": target.name,
        "model": target.model,
        "config": cfg.trainer.experiment_name,
        "settings": settings(cfg, setup.val_sampling(cfg), target.api),
        "identity": evaluation.identity.to_json(),
        "puzzles": {
            "played": len(groups),
            "seen_in_training": evaluation.seen,
            "training_puzzles_known": len(evaluation.known) if complete else None,
            # Above 0 only in games with few puzzles, whose evaluation includes training puzzles.
            **({"trained_on": trained} if trained else {}),
        },
        "tags": {
            tag: tag_result(
                cfg,
                tag,
                [group for group in groups if group.tag == tag],
                ks,
                states=writes_states(cfg, target),
                puzzles=[puzzle for puzzle in puzzles if puzzle.specs[0].tag == tag],
            )
            for tag in cfg.es_manager.val.env_configs.tags
        },
        **({"eval_set": {"name": eval_set.name, "sha256": eval_set.digest}} if eval_set else {}),
        "not_computed": not_computed(ks, cfg.es_manager.val.group_size),
        "versions": versions(),
    }
    played = {spec.episode_id for puzzle in puzzles for spec in puzzle.specs}
    planning = imagination(cfg.imagine, [evaluation.imagined], episodes=played)
    if planning is not None:
        result["imagination"] = planning
    if target.api is not None:
        result["usage"] = usage(evaluation.responses, prices, played)
    # If every episode failed, no result is written.
    if not any(metrics["episodes"] for metrics in result["tags"].values()):
        errors = next(
            (a.error for group in groups for a in group.attempts if a.error),
            "the environment gave no error message",
        )
        raise ModelError(f"Every episode of the evaluation failed. The first error: {errors}")
    return result


def play_puzzles(
    evaluation: Evaluation, loaded: tuple[Engine, ChatTemplate | None] | None
) -> list[Group]:
    """Return the groups of all puzzles in order, playing those that are not saved yet."""
    cfg = evaluation.cfg
    target = evaluation.target
    worker = evaluation.worker
    puzzles = evaluation.puzzles
    kept = evaluation.kept
    engine: Engine | None = None
    samples = cfg.es_manager.val.group_size
    # `size` counts groups: a chunk consists of whole groups, because groups are saved and reused as
    # a whole.
    size = max(1, side_by_side(cfg) // samples)
    groups: list[Group] = []
    started = time.monotonic()
    tokens = 0
    with ProgressLine("evaluate", total=len(puzzles)) as progress:
        for chunk in (puzzles[i : i + size] for i in range(0, len(puzzles), size)):
            finished = kept.find(chunk)
            if finished is None:
                # The model is loaded at the first unfinished chunk, so that repeating a finished
                # evaluation loads no model.
                if engine is None:
                    engine, worker = open_target(
                        cfg, target, worker, responses=evaluation.responses, loaded=loaded
                    )
                    if cfg.imagine.on:
                        tags = cfg.es_manager.val.env_configs.tags
                        record = recorder_of(evaluation.imagined)
                        response = cfg.actor_rollout_ref.rollout.response_length
                        engine = imagining(
                            cfg,
                            cfg.imagine,
                            tags,
                            engine,
                            worker.template,
                            record,
                            response=response,
                        )
                specs = [spec for puzzle in chunk for spec in puzzle.specs]
                episodes = worker.rollout(engine, specs, setup.val_sampling(cfg))
                tokens += tokens_in(episodes)
                finished = grouped(episodes, chunk, samples, worker)
                evaluation.episodes.add(episodes)
                kept.add(finished)
                release_memory()
            groups += finished
            speed = tokens / (time.monotonic() - started)
            progress.update(len(groups), so_far(groups, speed, states=writes_states(cfg, target)))
    if engine is not None and loaded is None:
        engine.close()
    return groups


def so_far(groups: Sequence[Group], tokens_per_second: float, *, states: bool) -> dict[str, str]:
    """Return the values for the progress line as formatted text by name: success, format and
    prediction rates of the finished groups, and tokens per second.

    The prediction rate is included only if responses contain predictions (`states`).
    """
    attempts = [attempt for group in groups for attempt in group.attempts if attempt.played]
    if not attempts:
        return {}
    turns = max(1, sum(attempt.turns for attempt in attempts))
    shares = {"success": sum(attempt.success for attempt in attempts) / len(attempts)}
    shares["format"] = sum(attempt.well_formed for attempt in attempts) / turns
    if states:
        shares["prediction"] = sum(attempt.predicted for attempt in attempts) / turns
    shown = {name: f"{share:.3f}" for name, share in shares.items()}
    return shown | ({"tokens/s": f"{tokens_per_second:,.0f}"} if tokens_per_second else {})


def grouped(
    episodes: Sequence[Episode], chunk: Sequence[Puzzle], samples: int, worker: setup.RolloutWorker
) -> list[Group]:
    """Group episodes by puzzle. `episodes` has `samples` consecutive episodes for each puzzle of
    `chunk`, in the same order."""
    groups = [
        group_of(
            episodes[i * samples : (i + 1) * samples],
            puzzle.difficulty,
            searches=lambda episode: episode_scores(episode, worker.make_env),
        )
        for i, puzzle in enumerate(chunk)
    ]
    return [
        replace(group, puzzle_hash=puzzle.hash) for group, puzzle in zip(groups, chunk, strict=True)
    ]


def eval_identity(cfg: Config, target: Target) -> Fingerprint:
    """Return the fingerprint of an evaluation. It leaves out the settings of API models other than
    the evaluated one."""
    complete = fingerprint_of(replace(cfg, model_path=target.model or target.name), "eval")
    asked = {
        name: value
        for name, value in complete.settings.items()
        if not name.startswith(("model_info.", "model_config."))
        or name.startswith(f"model_info.{target.api}.")
    }
    return replace(complete, settings=asked)


def side_by_side(cfg: Config) -> int:
    """Return the number of episodes to play in parallel: `CHUNK` divided by the number of responses
    that are sampled per turn."""
    return max(1, CHUNK // cfg.imagine.rows)


def groups_key(identity: Fingerprint, episodes: int) -> str:
    """Return the key under which groups are saved: a hash of all settings that affect the outcome
    of a group, followed by `episodes`, the number of episodes played in parallel."""
    # The number of groups is not part of the key, so that finished groups are reused when more are
    # requested.
    kept = {
        name: value for name, value in identity.settings.items() if name not in PUZZLE_COUNT_KEYS
    }
    return f"{replace(identity, settings=kept).digest[:16]} {episodes}"
