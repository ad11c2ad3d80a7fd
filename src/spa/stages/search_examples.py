"""Stage 1 without play: examples of responses that write a breadth-first search (`generate.policy:
search`).

Each example is a puzzle of its own, at its start or, as a later turn, in a random state that can be
reached from it. Validation puzzles are left out. Examples without a path to the goal, or with a
response of more than `generate.sampling.response_length` tokens, are dropped and replaced by
others.

The search runs in copies of the game, or by a model's own predictions of single moves, from the
prompt's text alone (`generate.search.dynamics`); which states are asked about is up to the game in
both. Every kind of `generate.search.thoughts` has the same puzzles, states and prompts.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.engines.base import Engine
from spa.engines.factory import make_engine
from spa.envs.base import TextEnv
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError, DataError
from spa.models.build import load_template
from spa.planning.moves import answer_tokens, move_question
from spa.planning.written_search import (
    Search,
    Successor,
    Transitions,
    breadth_first,
    breadth_first_together,
    dealt,
    explore,
    write_search,
)
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate
from spa.run import watchdog
from spa.run.files import write_atomic
from spa.run.stage import Stage
from spa.seeds import stream, stream_seed
from spa.stages import setup
from spa.types import Message, Metrics, Prompt, SamplingParams, WorldModelRow
from spa.worldmodel.rows import by_reason, write_parquet

log = logging.getLogger(__name__)

DRAWS = 20
"""Puzzles that are sampled for each example that is wanted, before a game is refused."""
TOGETHER = 256
"""Searches that run side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A state that a response is to be written for: a copy of the game there, and what the prompt
    shows."""

    number: int
    spec: EpisodeSpec
    puzzle_hash: str
    env: TextEnv
    true: Transitions
    text: str  # the state as the prompt shows it
    turn: int  # from 1
    actions_left: int
    messages: tuple[Message, ...]

    @property
    def start(self) -> str:
        """The key of the state."""
        key = self.env.state_key()
        assert key is not None
        return key


def write_examples(cfg: Config, stage: Stage, *, files: tuple[str, str, str]) -> None:
    """Write the training and validation examples and a summary to `files` in the stage's folder.

    Raises ConfigError for a game that does not name its states, DataError if too few puzzles give
    an example.
    """
    for step in stage.steps(1):
        metrics: Metrics = {}
        with stage.interruptible("examples"):
            if current_world().is_main:
                metrics = _write_examples(cfg, stage.folder, files)
        stage.commit(step, metrics)


def _write_examples(cfg: Config, out: Path, files: tuple[str, str, str]) -> Metrics:
    dynamics = make_dynamics(cfg)
    rows, lines, dropped, explored = make_examples(
        cfg, setup.make_worker(cfg, None, mode="base"), dynamics
    )
    # No puzzle comes twice, so any cut separates training from validation.
    train = rows[: cfg.generate.search.examples]
    validation = rows[len(train) :]
    write_parquet(out / files[0], train)
    write_parquet(out / files[1], validation)
    summary = {
        "episodes": 0,
        "played": {"episodes": 0.0, "num_actions": 0.0},
        "rows_train": len(train),
        "rows_val": len(validation),
        "puzzles": len(rows),
        "dropped": dict(sorted(dropped.items())),
        "actions_elsewhere": explored,
        "search": {
            "thoughts": cfg.generate.search.thoughts,
            "dynamics": cfg.generate.search.dynamics,
            "lines": dict(sorted(Counter(lines).items())),
            **dynamics.counts,
        },
    }
    write_atomic(out / files[2], [json.dumps(summary, indent=1)])
    log.info(
        "spa wrote %d training and %d validation examples of searches; dropped: %s",
        len(train),
        len(validation),
        by_reason(dropped),
    )
    measured = {f"search/{name}": float(value) for name, value in dynamics.counts.items()}
    return {
        "search/rows": float(len(rows)),
        "search/dropped": float(sum(dropped.values())),
        **measured,
    }


class Dynamics(Protocol):
    """Who says where actions lead. `counts`: what was asked, and how much of it was right."""

    counts: dict[str, float]

    def search(self, questions: Sequence[Question]) -> list[Search | None]:
        """A search from the state of each question; None where the successors of a state make no
        sense."""
        ...


class Simulator:
    """Copies of the game."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def search(self, questions: Sequence[Question]) -> list[Search | None]:
        """The true searches."""
        return [true_search(question) for question in questions]


class LearnedMoves:
    """A model that has learned single moves, asked for every action of every state that a search
    expands.

    A question is the text of a state. The answer names the next state, whose text is written by
    replacing the name in the question's; goal and holes are what the text itself calls so. The game
    is not asked. `counts` compares with it afterwards.
    """

    def __init__(self, engine: Engine, template: ChatTemplate | None) -> None:
        self.engine = engine
        self.template = template
        self.counts: dict[str, float] = {}
        self._totals: Counter[str] = Counter()

    def search(self, questions: Sequence[Question]) -> list[Search | None]:
        """The searches in the world that the model predicts."""
        starts: list[str] = []
        for question in questions:
            start = question.env.key_of_text(question.text)
            assert start is not None  # see `require_names`
            starts.append(start)
        limit = answer_tokens(starts, self.template)
        found = breadth_first_together(
            starts,
            lambda asked: self._expand([(questions[number], key) for number, key in asked], limit),
        )
        for question, search in zip(questions, found, strict=True):
            self._count(question, search)
        return found

    def _expand(
        self, asked: Sequence[tuple[Question, str]], limit: int
    ) -> list[tuple[Successor, ...] | None]:
        prompts = list[Prompt]()
        for question, key in asked:
            env = question.env
            state = question.env.text_of_key(question.text, key)
            assert state is not None  # it was checked when the key was predicted
            for action in env.action_names():
                prompts.append(
                    move_question(env, state, action, self.template, number=len(prompts))
                )
        answers = self.engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=limit))
        completions = iter(answers)
        self._totals["questions"] += len(prompts)
        self._totals["tokens"] += sum(
            0 if answer.token_ids is None else len(answer.token_ids) for answer in answers
        )
        found = list[tuple[Successor, ...] | None]()
        for question, asked_key in asked:
            env = question.env
            known = {action: key for action, key, _ in question.true.get(asked_key, ())}
            successors = list[Successor]()
            for action in env.action_names():
                answer = next(completions)
                key = "" if answer.finish_reason == "length" else answer.text.strip()
                self._totals["moves_right"] += known.get(action) == key
                state = env.text_of_key(question.text, key)
                if state is not None:
                    successors.append((action, key, env.outcome_of_text(state)))
            # One unreadable answer makes a line of the search incomplete, which ends this search.
            found.append(tuple(successors) if len(successors) == len(env.action_names()) else None)
        return found

    def _count(self, question: Question, search: Search | None) -> None:
        """Compare a search with the game."""
        totals = self._totals
        totals["searches"] += 1
        totals["searches_right"] += search == true_search(question)
        self.counts = {
            "questions": totals["questions"],
            "tokens": totals["tokens"],
            "move_right": round(totals["moves_right"] / max(1, totals["questions"]), 4),
            "search_right": round(totals["searches_right"] / totals["searches"], 4),
        }


def make_dynamics(cfg: Config) -> Dynamics:
    """Copies of the game, or the model that `model_path` names."""
    if cfg.generate.search.dynamics == "simulator":
        return Simulator()
    engine = make_engine(cfg, cfg.model_path, device=setup.pick_device(cfg))
    return LearnedMoves(engine, engine.template)


def true_search(question: Question) -> Search:
    """The search in copies of the game."""
    return breadth_first(question.start, lambda key: question.true[key])


def make_examples(
    cfg: Config, worker: setup.RolloutWorker, dynamics: Dynamics
) -> tuple[list[WorldModelRow], list[int], Counter[str], int]:
    """Examples of training and then of validation, the number of lines of each search, how many
    states were dropped for which reason, and how many actions copies of the game have taken."""
    own = cfg.generate.search
    share = cfg.generate.val_fraction
    wanted = own.examples + max(1, round(own.examples * share / (1 - share)))
    template = load_template(cfg, cfg.model_path)
    dropped: Counter[str] = Counter()
    chosen: list[tuple[Question, Search]] = []
    asked = questions(cfg, worker, dropped, most=DRAWS * wanted)
    explored = 0
    # Searches run in batches until there are enough examples or no puzzles left.
    while part := list(islice(asked, min(TOGETHER, wanted - len(chosen)))):
        explored += sum(len(moves) for question in part for moves in question.true.values())
        for question, search in zip(part, dynamics.search(part), strict=True):
            if search is None or search.path is None:
                dropped["unreadable_state" if search is None else "no_goal"] += 1
                continue
            # The length is checked with the search written out, whatever generate.search.thoughts
            # is, so that all its values train on the same puzzles.
            prompter = replace(worker.prompters[question.spec.tag], enable_think=True)
            text = response(write_search(search), search.path, question, prompter)
            if (
                len(template.reply_ids(text, prompter.prefill))
                > cfg.generate.sampling.response_length
            ):
                dropped["too_long"] += 1
                continue
            # The control needs a path, too, and all kinds of thoughts have the same puzzles.
            if own.dynamics == "simulator" and dealt_search(question, cfg.seed.train).path is None:
                dropped["no_goal_when_dealt"] += 1
                continue
            chosen.append((question, search))
    if len(chosen) < wanted:
        ((reason, _),) = dropped.most_common(1)
        raise DataError(
            f"spa made only {len(chosen)} of {wanted} search examples from {DRAWS * wanted} "
            f"puzzles (dropped: {by_reason(dropped)}). {too_few(reason, own.dynamics)}"
        )
    thoughts = thoughts_of(cfg, chosen)
    rows = [
        row_of(
            question, response(text, path, question, worker.prompters[question.spec.tag]), worker
        )
        for (question, _), (text, path) in zip(chosen, thoughts, strict=True)
    ]
    return rows, [len(search.lines) for _, search in chosen], dropped, explored


def too_few(reason: str, dynamics: str) -> str:
    """What to do where too few puzzles give an example, by the most frequent reason."""
    if reason == "too_long":
        return "Raise generate.sampling.response_length, or use a smaller board."
    if dynamics == "model" and reason in ("unreadable_state", "no_goal"):
        return (
            "The model does not predict single moves well: fine-tune on more of them (generate.search.moves). To "
            "test the stages alone, set generate.search.dynamics=simulator and generate.rounds=1."
        )
    if reason == "no_goal":
        return "The game has no way to its goal there. Lower generate.search.examples, or use other puzzles."
    return "The game has too few puzzles. Lower generate.search.examples."


def questions(
    cfg: Config, worker: setup.RolloutWorker, dropped: Counter[str], *, most: int
) -> Iterator[Question]:
    """States of fresh puzzles, one of each; none of validation, and none twice."""
    own = cfg.generate.search
    envs = cfg.es_manager.train.env_configs
    # Each tag appears in proportion to its number of groups.
    tags = [
        tag for tag, count in zip(envs.tags, envs.n_groups or (), strict=True) for _ in range(count)
    ]
    held_out = setup.validation_hashes(cfg, worker)
    known = set[str]()
    for number in range(most):
        watchdog.beat()
        rng = stream(cfg.seed.train, "search/state", number)
        spec = EpisodeSpec(
            episode_id=f"search/{number}",
            tag=tags[number % len(tags)],
            group=number,
            member=0,
            puzzle_seed=stream_seed(cfg.seed.train, "search/puzzle", number) % 2**31,
            noise_seed=stream_seed(cfg.seed.train, "search/noise", number),
            sample_seed=0,
        )
        look = worker.peek_reset(spec)
        reason = (
            "unmakeable"
            if look is None
            else "validation_puzzle"
            if look.hash in held_out
            else "duplicate"
        )
        if look is None or look.hash in held_out or look.hash in known:
            dropped[reason] += 1
            continue
        known.add(look.hash)
        prompter = worker.prompters[spec.tag]
        try:
            with boundary("searching the game's states", MAKING_S):
                true, copies = explore(look.env)
        except EnvFault as error:
            why = f"{error}. Check it with: spa env check {spec.tag}"
            # explore raises these two itself, with a message for the user.
            if isinstance(error.__cause__, ValueError | NotImplementedError):
                why = str(error.__cause__)
            raise ConfigError(
                f"generate.policy=search cannot search the states of {spec.tag}: {why}"
            ) from error
        env = look.env
        turn = 1
        # The first key is the state that the puzzle begins in.
        later = [key for key in true if key != next(iter(true))]
        # The last turn in which an action is left.
        last = min(
            prompter.max_turn, -(-prompter.max_actions_per_traj // prompter.max_actions_per_turn)
        )
        if later and last > 1 and rng.random() >= own.start_share:
            env = copies[later[int(rng.integers(len(later)))]]
            turn = int(rng.integers(2, last + 1))
        left = prompter.max_actions_per_traj - (turn - 1) * prompter.max_actions_per_turn
        yield Question(
            number=number,
            spec=spec,
            puzzle_hash=look.hash,
            env=env,
            true=true,
            text=env.state_text(prompter.state_text),
            turn=turn,
            actions_left=left,
            messages=prompter.first_messages(env, turn=turn, actions_left=left),
        )


def thoughts_of(
    cfg: Config, chosen: list[tuple[Question, Search]]
) -> list[tuple[str, tuple[str, ...]]]:
    """What each response thinks, and the path that its answer begins."""
    kind = cfg.generate.search.thoughts
    seed = cfg.seed.train
    found: list[tuple[str, tuple[str, ...]]] = []
    if kind == "dealt":
        for question, _ in chosen:
            search = dealt_search(question, seed)
            assert search.path is not None  # others were dropped
            found.append((write_search(search), search.path))
        return found
    others = (
        of_other_puzzles([search for _, search in chosen])
        if kind == "other_puzzle"
        else [s for _, s in chosen]
    )
    for (_, search), other in zip(chosen, others, strict=True):
        assert search.path is not None
        found.append(("" if kind == "none" else write_search(other), search.path))
    return found


def dealt_search(question: Question, seed: int) -> Search:
    """The search in a world where outcomes are dealt at random among the actions.

    Dealing keeps each state's distance from the start. The order of states at one distance changes,
    so in a large game the limit of lines may come before the goal.
    """
    world = dealt(question.true, stream(seed, "search/dealt", question.number))
    return breadth_first(question.start, lambda key: world[key])


def of_other_puzzles(searches: list[Search]) -> list[Search]:
    """For each search another one with as many lines, and another text where there is one: within
    each length, the next of its length in their order. A search that is the only one of its length
    takes one of the nearest length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, search in enumerate(searches):
        by_length[len(search.lines)].append(number)
    found = list(searches)
    for length, numbers in by_length.items():
        for place, number in enumerate(numbers):
            later = [numbers[(place + step) % len(numbers)] for step in range(1, len(numbers))]
            if not later:
                nearest = min(
                    (n for n in by_length if n != length),
                    key=lambda n: abs(n - length),
                    default=length,
                )
                later = by_length[nearest]
            other = next(
                (searches[n] for n in later if searches[n] != searches[number]), searches[later[0]]
            )
            found[number] = other
    return found


def response(thoughts: str, path: tuple[str, ...], question: Question, prompter: Prompter) -> str:
    """The response: thoughts, and as much of the path as a turn takes."""
    taken = path[: min(prompter.max_actions_per_turn, question.actions_left)]
    answer = f"<answer>{f' {prompter.action_sep} '.join(taken)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer


def row_of(question: Question, text: str, worker: setup.RolloutWorker) -> WorldModelRow:
    """The example of a response, with what its actions lead to in a copy of the game."""
    spec = question.spec
    prompter = worker.prompters[question.spec.tag]
    env = question.env.clone()
    reward = 0.0
    success = False
    # The text is made here, so it has exactly one answer block.
    answer = text[text.index("<answer>") + len("<answer>") : text.index("</answer>")]
    taken = list[str]()
    for name in answer.split(prompter.action_sep):
        taken.append(name.strip())
        action = env.to_action(taken[-1])
        assert action is not None
        _, gain, ended, _, info = env.step(action)
        reward = reward + float(gain)
        success = success or bool(info["success"])
        if ended:
            break
    return WorldModelRow(
        prompt=question.messages,
        response=text,
        tag=spec.tag,
        episode_id=spec.episode_id,
        turn=question.turn - 1,
        puzzle_seed=spec.puzzle_seed,
        puzzle_hash=question.puzzle_hash,
        success=success,
        reward=reward,
        state=question.env.world_state_text(prompter.state_text),
        next_state=env.world_state_text(prompter.state_text),
        executed=tuple(taken),
    )
