"""Select the unseen puzzles of an evaluation, and determine their difficulty and the success of
reference policies on them."""

from contextlib import suppress
from dataclasses import dataclass, replace

from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.envs.cards import Card, card_with, mean_optimum, mean_success
from spa.envs.eval_sets import EvalSet
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.envs.pool import EpisodeSpec
from spa.envs.reference import REFERENCES, reference_success
from spa.errors import DataError
from spa.recipes import setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """A puzzle to evaluate on, and the episodes to play on it."""

    hash: str
    difficulty: int | None
    difficulty_unit: str
    # Success rate of the optimal policy; None if unknown. Also None if the tag has reference
    # scores, which are reported instead.
    best: float | None
    # Reference policy -> whether it wins, or None if it is not available. Empty if the tag has
    # reference scores.
    references: dict[str, bool | None]
    specs: tuple[EpisodeSpec, ...]


def unseen_puzzles(
    cfg: Config,
    worker: setup.RolloutWorker,
    known: frozenset[str],
    eval_set: EvalSet | None = None,
) -> tuple[list[Puzzle], int]:
    """Return the puzzles to play, and the number of puzzles left out because they are in `known`.

    The puzzles come from `eval_set` if given, otherwise from validation. As in training, no puzzle
    is left out in environments with a small finite set of puzzles. Raises DataError if no puzzle is
    left, or if a puzzle of the evaluation set is in `known` or has changed since the set was made.
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
        best = None
        references: dict[str, bool | None] = {}
        # If the tag has no reference scores, the reference policies play each puzzle.
        if look is not None and card_of(cfg, tag) is None:
            best = solvable(look.env, cfg.most_actions(tag))
            references = reference_wins(look.env, cfg.most_actions(tag), specs[0].puzzle_seed)
        puzzles.append(
            Puzzle(
                hash="" if look is None else look.hash,
                difficulty=None if look is None else difficulty(look.env),
                difficulty_unit=TextEnv.difficulty_unit
                if look is None
                else look.env.difficulty_unit,
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
    """Raise DataError if puzzle `number` of an evaluation set has changed or was trained on.
    `content` is its current hash; `known` has the hashes of all training puzzles."""
    if content != eval_set.puzzle_hashes[number]:
        raise DataError(
            f"Puzzle {number} of the evaluation set {eval_set.name} has changed since the set was made: the seed "
            f"{eval_set.seeds[number]} gives other content. Use the version of spa that made it"
        )
    if content in known:
        raise DataError(
            f"Puzzle {number} of the evaluation set {eval_set.name} was a training puzzle of this model, so the set "
            "does not measure it. Train again: spa leaves the puzzles of evaluation sets out"
        )


def difficulty(env: TextEnv) -> int | None:
    """Difficulty of a puzzle in the unit of its game; None if unknown."""
    try:
        with boundary("puzzle_difficulty", MAKING_S):
            return env.puzzle_difficulty()
    except EnvFault:
        return None


def solvable(env: TextEnv, actions: int) -> float | None:
    """Success rate of the optimal policy within `actions` actions; None if unknown."""
    try:
        with boundary("best_success", MAKING_S):
            return env.best_success(actions)
    except EnvFault:
        return None


def reference_wins(env: TextEnv, actions: int, seed: int) -> dict[str, bool | None]:
    """Let each reference policy play one episode; return by name whether it wins within `actions`
    actions. A value is None if the policy is not available for this game, or if the game cannot be
    copied or has several players."""
    wins: dict[str, bool | None] = {}
    for name in REFERENCES:
        wins[name] = None
        with suppress(EnvFault), boundary(name, MAKING_S):
            # In games with several players, these policies would choose the moves of all players.
            if env.players == 1:
                wins[name] = reference_success(env.clone(), name, actions, seed=seed)
    return wins


def reference_scores(cfg: Config) -> dict[str, float]:
    """Return the success rate on the validation puzzles for each reference policy and for the
    optimal policy (`optimum`), by name.

    Reference policies play one episode per puzzle. Unknown rates are left out.
    """
    worker = setup.make_worker(cfg, None, mode=cfg.ctx_manager.mode)
    best = list[float | None]()
    wins = list[dict[str, bool | None]]()
    for spec in setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0):
        # All episodes of a group play the same puzzle.
        look = worker.peek_reset(spec) if spec.member == 0 else None
        if look is not None:
            limit = cfg.most_actions(spec.tag)
            best.append(solvable(look.env, limit))
            wins.append(reference_wins(look.env, limit, spec.puzzle_seed))
    scores = {name: mean_success([won[name] for won in wins]) for name in REFERENCES}
    scores["optimum"] = mean_optimum(best)
    return {name: round(score, 4) for name, score in scores.items() if score is not None}


def card_of(cfg: Config, tag: str) -> Card | None:
    """Return the reference scores of a tag, or None if none were measured with its current options
    and action limit."""
    spec = cfg.custom_envs[tag]
    return card_with(tag, spec.env_type, spec.env_config, cfg.most_actions(tag))
