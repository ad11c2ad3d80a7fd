"""Evaluate a policy on unseen puzzles: Pass@1, unbiased Pass@k, and rollout metrics.

The puzzles, noise and draws are those of the validation during training (`seed.val`). So the last
checkpoint of a run scores here what its last validation said, if that had one pass
(`trainer.validation_steps`). Other puzzles are a matter of `seed.val=...`. Groups are played in
fixed chunks, and a chunk is kept as soon as it is finished: an interrupted evaluation resumes and
ends with the same bytes.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.config.load import to_yaml
from spa.config.schema import Config
from spa.engines.base import Engine
from spa.envs.base import TextEnv
from spa.envs.cards import Card, card_with, mean_optimum, mean_success
from spa.envs.eval_sets import EvalSet
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.envs.pool import EpisodeSpec
from spa.envs.reference import REFERENCES, reference_success
from spa.errors import ConfigError, DataError, ModelError
from spa.evaluation.aggregate import KS, not_computed, play_report
from spa.evaluation.outcomes import Group, group_of
from spa.evaluation.search import episode_scores
from spa.formats.registry import format_of
from spa.models.allocator import release_memory
from spa.models.load import BUILTIN
from spa.models.precision import precision_of, with_precision
from spa.policies.named import policy_names
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.imagination import imagination, imagining, recorder_of
from spa.recipes.policies import (
    Target,
    behind_api,
    knows_all_data,
    open_target,
    training_hashes,
)
from spa.recipes.versions import versions
from spa.run.files import archive_files, dump_line, end_last_line, read_lines, write_atomic
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import fingerprint_of
from spa.run.progress import ProgressLine
from spa.run.watchdog import Watchdog
from spa.types import Episode, tokens_in

log = logging.getLogger(__name__)

CHUNK = 256
"""Responses that are sampled side by side. Part of the result: it fixes the batches, and with them
the rounding."""
HOW_MANY = ("es_manager.val.env_groups", "es_manager.val.env_configs.n_groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """A puzzle before it is played, with the attempts to make at it."""

    hash: str
    difficulty: int | None
    best: float | None  # success of the best policy; None if unknown, or if the tag's card has it
    # Whether each reference policy wins; None where it is not available, {} if the tag's card has it.
    references: dict[str, bool | None]
    specs: tuple[EpisodeSpec, ...]


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
    """Play the validation groups as `target`, write the result to `output` and return it.

    ks: of Pass@k; by default those of KS that the samples allow. prices: of an API, per million
    tokens read and written. loaded: the engine that plays as `target`, if there is one already; it
    stays open. eval_set: its puzzles are played in place of those of `seed.val`; the configuration
    has its `overrides`.

    Raises ConfigError for an impossible k, DataError if no puzzle is left to play, ModelError if no
    episode could be played to its end.
    """
    if ks is None:
        ks = tuple(k for k in KS if k <= cfg.es_manager.val.group_size)
    if not ks or min(ks) < 1:
        raise ConfigError(
            f"pass@k: every k must be at least 1, got {', '.join(map(str, ks)) or 'none'}"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    target = behind_api(cfg, target)
    # On a CPU, `auto` becomes a definite precision here, because the result depends on it.
    cfg = with_precision(cfg, precision_of(replace(cfg, model_path=target.model or cfg.model_path)))
    worker = setup.make_worker(
        cfg,
        None,
        mode=cfg.ctx_manager.mode,
        lost=output.with_suffix(".lost.jsonl"),
        own_rewards=True,
    )
    known = training_hashes(target.run) if target.run else frozenset()
    # The bundled model was pretrained without a transition of any puzzle.
    complete = target.name == BUILTIN or (target.run is not None and knows_all_data(target.run))
    puzzles, seen = unseen_puzzles(cfg, worker, known, eval_set)
    trained = sum(puzzle.hash in known for puzzle in puzzles)
    identity = eval_identity(cfg, target)
    # The key guards what is kept: an evaluation resumes from it
    # only if all its settings but the number of groups are the same.
    key = groups_key(identity, side_by_side(cfg))
    if eval_set is not None:
        key = f"{key} {eval_set.digest[:16]}"
    kept = Store(output.with_suffix(".groups.jsonl"), key)
    record = output.with_suffix(f".imagined-{key[:8]}.jsonl")
    responses = output.with_suffix(f".responses-{key[:8]}.jsonl")
    episodes = EpisodeFile(
        output.with_suffix("") / "trajectories" / "val-000000.jsonl", continued=bool(kept)
    )
    write_atomic(output.with_suffix("") / "config.yaml", [to_yaml(cfg)])
    watchdog = Watchdog(None, cfg.trainer.stall_timeout_s)
    try:
        groups = play_puzzles(
            cfg,
            target,
            worker,
            puzzles,
            kept,
            played=episodes,
            responses=responses,
            imagined=record,
            loaded=loaded,
        )
    finally:
        watchdog.close()
    result: dict[str, Any] = {
        "policy": target.name,
        "model": target.model,
        "config": cfg.trainer.experiment_name,
        "settings": settings(cfg),
        "identity": identity.to_json(),
        "puzzles": {
            "played": len(groups),
            "seen_in_training": seen,
            "training_puzzles_known": len(known) if complete else None,
            # Games with few puzzles only.
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
    if (planning := imagination(cfg.imagine, [record], episodes=played)) is not None:
        result["imagination"] = planning
    if target.api is not None:
        result["usage"] = usage(responses, prices, played)
    # Checked before the result is written: an evaluation in which every episode failed leaves no
    # result.
    if not any(metrics["episodes"] for metrics in result["tags"].values()):
        errors = next(
            (a.error for group in groups for a in group.attempts if a.error),
            "the environment gave no error message",
        )
        raise ModelError(f"Every episode of the evaluation failed. The first error: {errors}")
    write_result(output, result)
    return result


def write_result(output: Path, result: dict[str, Any]) -> None:
    """Write a result; another one of the same name is moved to `previous/<n>/`, because it may have
    cost money."""
    text = json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if output.is_file() and output.read_bytes() != text.encode():
        log.warning(
            "spa moved the earlier evaluation result to %s",
            archive_files(output.parent, [output]) / output.name,
        )
    write_atomic(output, [text])


def unseen_puzzles(
    cfg: Config,
    worker: setup.RolloutWorker,
    known: frozenset[str],
    eval_set: EvalSet | None = None,
) -> tuple[list[Puzzle], int]:
    """The validation puzzles, or those of `eval_set`, that are not among `known`, and how many were
    left out.

    Environments with a small finite set of puzzles are exempt, as in training; their cards say so.
    Raises DataError if a puzzle of an evaluation set is among `known`, or has changed since the set
    was made.
    """
    by_group: dict[int, list[EpisodeSpec]] = {}
    for spec in setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0):
        if eval_set is not None:
            spec = replace(spec, puzzle_seed=eval_set.seeds[spec.group])
        by_group.setdefault(spec.group, []).append(spec)
    puzzles = []
    seen = 0
    for specs in by_group.values():
        look = worker.peek_reset(specs[0])
        if eval_set is not None:
            check_puzzle(eval_set, specs[0].group, "" if look is None else look.hash, known)
        if look is not None and look.hash in known and not look.finite:
            seen += 1
            continue
        tag = specs[0].tag
        sudoku = cfg.custom_envs[tag].env_type == "sudoku"
        content, hard = ("", None) if look is None else (look.hash, difficulty(look.env, sudoku))
        best = None
        references: dict[str, bool | None] = {}
        # The tag's card gives the scores of the whole tag. Without a card each puzzle is played.
        if look is not None and card_of(cfg, tag) is None:
            best = solvable(look.env, cfg.most_actions(tag))
            references = reference_wins(look.env, cfg.most_actions(tag), specs[0].puzzle_seed)
        puzzles.append(
            Puzzle(
                hash=content,
                difficulty=hard,
                best=best,
                references=references,
                specs=tuple(specs),
            )
        )
    if not puzzles:
        raise DataError(
            f"All {seen} validation puzzles were also training puzzles. Evaluate on other "
            "puzzles with seed.val=NUMBER, or on more puzzles with --puzzles"
        )
    return puzzles, seen


def check_puzzle(eval_set: EvalSet, number: int, content: str, known: frozenset[str]) -> None:
    """Raises DataError if a puzzle of an evaluation set is another one now, or was trained on."""
    if content != eval_set.puzzle_hashes[number]:
        raise DataError(
            f"Puzzle {number} of the evaluation set {eval_set.name} has changed since the set was made: the seed "
            f"{eval_set.seeds[number]} gives other content. Use the version of spa that has made it"
        )
    if content in known:
        raise DataError(
            f"Puzzle {number} of the evaluation set {eval_set.name} was a training puzzle of this model, so the set "
            "does not measure it. Train again: spa leaves the puzzles of evaluation sets out"
        )


def difficulty(env: TextEnv, sudoku: bool) -> int | None:
    """Difficulty of a puzzle: given digits of a Sudoku, else fewest actions."""
    try:
        with boundary("optimal_steps", MAKING_S):
            if not sudoku:
                return env.optimal_steps()
            # Counted in the text, because an environment in another process has only methods.
            return sum(word.isdigit() for word in env.puzzle_text().split())
    except EnvFault:
        return None


def solvable(env: TextEnv, actions: int) -> float | None:
    """Success of the best policy within so many actions; None if that is not known."""
    try:
        with boundary("best_success", MAKING_S):
            return env.best_success(actions)
    except EnvFault:
        return None


def reference_wins(env: TextEnv, actions: int, seed: int) -> dict[str, bool | None]:
    """Return whether each reference policy wins a puzzle within so many actions, in one episode;
    None where it is not available, or where the game cannot be copied."""
    wins: dict[str, bool | None] = {}
    for name in REFERENCES:
        wins[name] = None
        with suppress(EnvFault), boundary(name, MAKING_S):
            # In games of several players these policies would move for all of them.
            if env.players == 1:
                wins[name] = reference_success(env.clone(), name, actions, seed=seed)
    return wins


def reference_scores(cfg: Config) -> dict[str, float]:
    """Success of the reference policies and the optimum on the validation puzzles, each in one
    episode a puzzle; without those that are not available."""
    worker = setup.make_worker(cfg, None, mode=cfg.ctx_manager.mode)
    best = list[float | None]()
    wins = list[dict[str, bool | None]]()
    for spec in setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0):
        # All members of a group have the puzzle of the first.
        look = worker.peek_reset(spec) if spec.member == 0 else None
        if look is not None:
            limit = cfg.most_actions(spec.tag)
            best.append(solvable(look.env, limit))
            wins.append(reference_wins(look.env, limit, spec.puzzle_seed))
    scores = {name: mean_success([won[name] for won in wins]) for name in REFERENCES}
    scores["optimum"] = mean_optimum(best)
    return {name: round(score, 4) for name, score in scores.items() if score is not None}


def card_of(cfg: Config, tag: str) -> Card | None:
    """The card of a tag, if it was measured with the same options and as many actions as its turns
    hold."""
    spec = cfg.custom_envs[tag]
    return card_with(tag, spec.env_type, spec.env_config, cfg.most_actions(tag))


def play_puzzles(
    cfg: Config,
    target: Target,
    worker: setup.RolloutWorker,
    puzzles: list[Puzzle],
    kept: "Store",
    *,
    played: "EpisodeFile",
    responses: Path,
    imagined: Path,
    loaded: tuple[Engine, ChatTemplate | None] | None = None,
) -> list[Group]:
    """The groups of all puzzles, in order: from `kept` where they are finished, else played now.
    `imagined`: the file of the planner's records; `played`: the file of the episodes."""
    engine: Engine | None = None
    samples = cfg.es_manager.val.group_size
    # A chunk has whole groups, so that every group of a finished chunk is finished.
    size = max(1, side_by_side(cfg) // samples)
    groups: list[Group] = []
    started = time.monotonic()
    tokens = 0
    with ProgressLine("evaluate", total=len(puzzles)) as progress:
        for chunk in (puzzles[i : i + size] for i in range(0, len(puzzles), size)):
            finished = kept.find(chunk)
            if finished is None:
                # The model is loaded at the first unfinished chunk, so that a repeated command
                # loads none.
                if engine is None:
                    engine, worker = open_target(
                        cfg, target, worker, responses=responses, loaded=loaded
                    )
                    if cfg.imagine.on:
                        tags = cfg.es_manager.val.env_configs.tags
                        record = recorder_of(imagined)
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
                played.add(episodes)
                kept.add(finished)
                release_memory()
            groups += finished
            speed = tokens / (time.monotonic() - started)
            progress.update(len(groups), so_far(groups, speed, states=writes_states(cfg, target)))
    if engine is not None and loaded is None:
        engine.close()
    return groups


def so_far(groups: Sequence[Group], tokens_per_second: float, *, states: bool) -> dict[str, str]:
    """Progress line for the finished groups."""
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
    """Episodes in the order of their specs as one group per puzzle."""
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


class Store:
    """Finished groups in a JSON-lines file. Its first line says what they were played with; groups
    of other settings are set aside."""

    def __init__(self, path: Path, settings: str) -> None:
        self.path, self._groups = path, dict[tuple[str, str, int], Group]()
        if path.is_file() and not self._read(settings):
            kept = archive_files(path.parent, [path]) / path.name
            log.warning(
                "%s was written with other settings or another model; spa moved it to %s",
                path,
                kept,
            )
        if not path.is_file():
            write_atomic(path, [dump_line({"settings": settings})])

    def __bool__(self) -> bool:
        """Return whether any group is finished."""
        return bool(self._groups)

    def find(self, chunk: Sequence[Puzzle]) -> list[Group] | None:
        """The groups of a chunk if all of them are finished; a chunk is played whole or not at all."""
        stored = [self._groups.get((p.specs[0].tag, p.hash, p.specs[0].group)) for p in chunk]
        groups = [group for group in stored if group is not None and group.complete]
        return groups if len(groups) == len(chunk) else None

    def add(self, groups: Iterable[Group]) -> None:
        """Keep finished groups."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(dump_line(group.to_json()) for group in groups)

    def _read(self, settings: str) -> bool:
        lines = read_lines(self.path)
        _, head = next(lines, ("", {}))
        if head.get("settings") != settings:
            return False
        for _, row in lines:
            try:
                group = Group.from_json(row)
            # A group in the format of another version is played again.
            except (TypeError, KeyError):
                continue
            self._groups[group.tag, group.puzzle_hash, group.group] = group
        # A kill may have cut off the last line; the next group then starts a new line.
        end_last_line(self.path)
        return True


class EpisodeFile:
    """The episodes of an evaluation in a JSON-lines file, which the viewer and the report read."""

    def __init__(self, path: Path, *, continued: bool) -> None:
        self.path = path
        self._names = set[str]()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and not continued:  # its episodes are of other settings
            archive_files(path.parent.parent, [path])
        if path.is_file():
            self._keep(lambda name: True)  # drops a last line that a kill cut off

    def add(self, episodes: Sequence[Episode]) -> None:
        """Append episodes. They replace those of the same names, which are there if an evaluation
        was killed, or played again after an error."""
        names = {episode.episode_id for episode in episodes}
        if not self._names.isdisjoint(names):
            self._keep(lambda name: name not in names)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(dump_line(episode.to_json()) for episode in episodes)
        self._names |= names

    def _keep(self, wanted: Callable[[str], bool]) -> None:
        """Write the file again with the complete lines of the wanted episodes."""
        kept = [
            (line, name)
            for line, row in read_lines(self.path)
            if wanted(name := str(row.get("episode_id")))
        ]
        write_atomic(self.path, [line for line, _ in kept])
        self._names = {name for _, name in kept}


def usage(
    responses: Path, prices: tuple[float, float] | None, episodes: Set[str]
) -> dict[str, float]:
    """Sum the API usage of these episodes: requests, their retries, tokens, the cost if prices are
    given, and the number of empty responses. The file may hold other episodes, of an earlier
    evaluation of more puzzles."""
    kept = [row for _, row in read_lines(responses)] if responses.is_file() else []
    # A planner's questions have the name of their episode, then # and more.
    rows = [row for row in kept if str(row.get("episode")).partition("#")[0] in episodes]
    read, written = (
        sum(row.get(name, 0) for row in rows) for name in ("prompt_tokens", "completion_tokens")
    )
    used: dict[str, float] = {
        "requests": len(rows),
        "retries": sum(row.get("retries", 0) for row in rows),
        "empty_responses": sum(not row.get("text") for row in rows),
        "prompt_tokens": read,
        "completion_tokens": written,
    }
    if prices is not None:
        used["cost"] = round((read * prices[0] + written * prices[1]) / 1e6, 6)
    return used


def settings(cfg: Config) -> dict[str, Any]:
    """Settings that determine the result of this evaluation, for people."""
    val = cfg.es_manager.val
    sampling = setup.val_sampling(cfg)
    turns = {tag: cfg.max_turn(tag) for tag in val.env_configs.tags}
    return {
        "groups": val.env_groups,
        "samples": val.group_size,
        "seed": cfg.seed.val,
        "mode": cfg.ctx_manager.mode,
        "state_text": cfg.state_text,
        "history": cfg.ctx_manager.history,
        # A tag may have a limit of its own.
        "max_turn": turns
        if len(set(turns.values())) > 1
        else cfg.max_turn(val.env_configs.tags[0]),
        "max_actions_per_turn": cfg.agent_proxy.max_actions_per_turn,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
    }


def eval_identity(cfg: Config, target: Target) -> Fingerprint:
    """Fingerprint of an evaluation; of the models behind an API it includes only the evaluated
    one."""
    complete = fingerprint_of(replace(cfg, model_path=target.model or target.name), "eval")
    asked = {
        name: value
        for name, value in complete.settings.items()
        if not name.startswith(("model_info.", "model_config."))
        or name.startswith(f"model_info.{target.api}.")
    }
    return replace(complete, settings=asked)


def side_by_side(cfg: Config) -> int:
    """Episodes that are played at a time: fewer where several responses are sampled in each of
    their turns."""
    return max(1, CHUNK // cfg.imagine.rows)


def groups_key(identity: Fingerprint, episodes: int) -> str:
    """A hash of everything that a group's outcome depends on, the number of groups aside, and how
    many `episodes` are played at a time."""
    # The number of groups is left out, so that finished groups are kept if more are asked for.
    kept = {name: value for name, value in identity.settings.items() if name not in HOW_MANY}
    return f"{replace(identity, settings=kept).digest[:16]} {episodes}"


def writes_states(cfg: Config, target: Target) -> bool:
    """Return whether responses contain observations and predictions; those of scripted policies
    hold no more than the format."""
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
    """The figures of a tag, `states` among them if responses tell of any, held against the optimum
    and the reference policies: by its card, or else on these puzzles."""
    spec = cfg.custom_envs[tag]
    card = card_of(cfg, tag)
    report = play_report(groups, ks=ks, world_model=states)
    if not format_of(cfg.agent_proxy.response_format).predicts:
        report.pop("prediction_exact", None)
        report.pop("copy_exact", None)
    report["difficulty_is"] = "clues" if spec.env_type == "sudoku" else "fewest actions"
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
