"""Stage 1 without play: examples of responses that write a breadth-first search (`generate.policy:
search`).

Each example is a puzzle of its own, at its start or, as a later turn, in a random state that the
turns before can have led to. Validation puzzles are left out. Examples without a path to the goal, or with a
response of more than `generate.sampling.response_length` tokens, are dropped and replaced by
others.

States of later turns and searches come from copies of the game, or from a model's own predictions
of single moves and the text of the first prompt alone (`generate.search.dynamics`). Then copies of
the game only measure the predictions. Every kind of `generate.search.thoughts` has the same
puzzles, states and prompts.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.engines.base import Engine
from spa.engines.factory import make_engine
from spa.envs.base import StateText, TextEnv
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError, DataError
from spa.models.build import load_template
from spa.planning.moves import answer_tokens, move_question
from spa.planning.written_search import (
    GOAL,
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

Successors = tuple[Successor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """A fresh puzzle, and the turn that its example is about."""

    number: int
    spec: EpisodeSpec
    puzzle_hash: str
    env: TextEnv  # at the start
    true: Transitions
    copies: Mapping[str, TextEnv]  # a copy of the game in each state that does not end it
    text: str  # the start as prompts show it
    turn: int  # from 1
    rng: np.random.Generator  # samples the state of a later turn

    @property
    def start(self) -> str:
        """The key of the start."""
        return next(iter(self.true))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A state that a response is to be written for. `view`: what prompts show of the game there."""

    puzzle: Puzzle
    start: str  # the key of the state
    view: Any  # a TextEnv or a PredictedView
    turn: int  # from 1
    actions_left: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class PredictedView:
    """A game as prompts show it in a predicted state; all else is as in `env`, at the start."""

    env: TextEnv
    state: str

    def state_text(self, mode: StateText) -> str:
        """The predicted state; it was written in the mode that prompts show."""
        return self.state

    def world_state_text(self, mode: StateText) -> str:
        """The same: a model knows what prompts show."""
        return self.state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the actions of an answer lead to."""

    executed: tuple[str, ...]
    next_state: str
    success: bool
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A question with its search as text, and the control's search in permuted outcomes."""

    question: Question
    search: Search
    text: str
    dealt: tuple[str, tuple[str, ...]] | None


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
    """Source of successor states. `counts`: what was asked, and how much of it was right."""

    counts: dict[str, float]

    def expand(self, asked: Sequence[tuple[Puzzle, str]]) -> list[Successors | None]:
        """The successors of each state, by its puzzle and key; None where they make no sense."""
        ...

    def view(self, puzzle: Puzzle, key: str) -> Any:
        """What prompts show of the game in a state."""
        ...

    def search(self, questions: Sequence[Question]) -> list[Search | None]:
        """A search from the state of each question; None where the successors of a state make no
        sense."""
        ...

    def play(self, question: Question, actions: Sequence[str], mode: StateText) -> Played:
        """What these actions lead to."""
        ...

    def actions(self, puzzle: Puzzle) -> int:
        """The actions of the game that examples of this puzzle rest on."""
        ...


class Simulator:
    """Copies of the game."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def expand(self, asked: Sequence[tuple[Puzzle, str]]) -> list[Successors | None]:
        """The true successors."""
        return [tuple(puzzle.true[key]) for puzzle, key in asked]

    def view(self, puzzle: Puzzle, key: str) -> TextEnv:
        """The copy of the game in a state."""
        return puzzle.copies[key]

    def search(self, questions: Sequence[Question]) -> list[Search | None]:
        """The true searches."""
        return [true_search(question) for question in questions]

    def play(self, question: Question, actions: Sequence[str], mode: StateText) -> Played:
        """What these actions lead to in a copy, until the game ends."""
        env = question.puzzle.copies[question.start].clone()
        executed = list[str]()
        reward = 0.0
        success = False
        for name in actions:
            action = env.to_action(name)
            assert action is not None
            _, gain, terminated, truncated, info = env.step(action)
            executed.append(name)
            reward += float(gain)
            success = success or bool(info["success"])
            if terminated or truncated:
                break
        return Played(
            executed=tuple(executed),
            next_state=env.world_state_text(mode),
            success=success,
            reward=reward,
        )

    def actions(self, puzzle: Puzzle) -> int:
        """One for each action of each state."""
        return sum(map(len, puzzle.true.values()))


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
        # By number of the puzzle and key: a state is asked about once.
        self._known: dict[tuple[int, str], Successors | None] = {}

    def expand(self, asked: Sequence[tuple[Puzzle, str]]) -> list[Successors | None]:
        """The successors that the model predicts; None where an answer names no state."""
        new = [each for each in asked if (each[0].number, each[1]) not in self._known]
        if new:
            self._ask(list({(puzzle.number, key): (puzzle, key) for puzzle, key in new}.values()))
        return [self._known[puzzle.number, key] for puzzle, key in asked]

    def view(self, puzzle: Puzzle, key: str) -> PredictedView:
        """The start's text with the state of `key` in its place."""
        state = puzzle.env.text_of_key(puzzle.text, key)
        assert state is not None  # it was checked when the key was predicted
        return PredictedView(puzzle.env, state)

    def search(self, questions: Sequence[Question]) -> list[Search | None]:
        """The searches in the world that the model predicts."""
        found = breadth_first_together(
            [question.start for question in questions],
            lambda asked: self.expand([(questions[number].puzzle, key) for number, key in asked]),
        )
        for question, search in zip(questions, found, strict=True):
            self._count(question, search)
        return found

    def play(self, question: Question, actions: Sequence[str], mode: StateText) -> Played:
        """What the predictions say of these actions; a model predicts no rewards."""
        key = question.start
        outcome = ""
        for name in actions:
            successors = self._known[question.puzzle.number, key]
            assert successors is not None and not outcome  # a search has found this path
            key, outcome = next(
                (state, word) for action, state, word in successors if action == name
            )
        return Played(
            executed=tuple(actions),
            next_state=self.view(question.puzzle, key).state,
            success=outcome == GOAL,
            reward=0.0,
        )

    def actions(self, puzzle: Puzzle) -> int:
        """None: copies of the game only measure."""
        return 0

    def _ask(self, asked: Sequence[tuple[Puzzle, str]]) -> None:
        prompts = list[Prompt]()
        for puzzle, key in asked:
            state = self.view(puzzle, key).state
            for action in puzzle.env.action_names():
                prompts.append(
                    move_question(puzzle.env, state, action, self.template, number=len(prompts))
                )
        limit = answer_tokens((puzzle.start for puzzle, _ in asked), self.template)
        answers = self.engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=limit))
        completions = iter(answers)
        self._totals["questions"] += len(prompts)
        self._totals["tokens"] += sum(
            0 if answer.token_ids is None else len(answer.token_ids) for answer in answers
        )
        for puzzle, asked_key in asked:
            env = puzzle.env
            known = {action: key for action, key, _ in puzzle.true.get(asked_key, ())}
            successors = list[Successor]()
            for action in env.action_names():
                answer = next(completions)
                key = "" if answer.finish_reason == "length" else answer.text.strip()
                self._totals["moves_right"] += known.get(action) == key
                state = env.text_of_key(puzzle.text, key)
                if state is not None:
                    successors.append((action, key, env.outcome_of_text(state)))
            # One unreadable answer makes a line of the search incomplete, which ends this search.
            whole = len(successors) == len(env.action_names())
            self._known[puzzle.number, asked_key] = tuple(successors) if whole else None

    def _count(self, question: Question, search: Search | None) -> None:
        """Compare a search with the game: it is right if all of its moves are."""
        totals = self._totals
        totals["searches"] += 1
        totals["searches_right"] += search is not None and all(
            (self._known[question.puzzle.number, line.key] or ())[: len(line.moves)]
            == tuple(question.puzzle.true.get(line.key, ()))[: len(line.moves)]
            for line in search.lines
        )
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
    return breadth_first(question.start, lambda key: question.puzzle.true[key])


def make_examples(
    cfg: Config, worker: setup.RolloutWorker, dynamics: Dynamics
) -> tuple[list[WorldModelRow], list[int], Counter[str], int]:
    """Examples of training and then of validation, the number of lines of each search, how many
    states were dropped for which reason, and how many actions of the game the examples rest on."""
    own = cfg.generate.search
    share = cfg.generate.val_fraction
    wanted = own.examples + max(1, round(own.examples * share / (1 - share)))
    template = load_template(cfg, cfg.model_path)
    dropped: Counter[str] = Counter()
    chosen = list[Searched]()
    fresh = puzzles(cfg, worker, dropped, most=DRAWS * wanted)
    explored = 0

    def too_long(thoughts: str, path: tuple[str, ...], question: Question) -> bool:
        # The length counts with the search written out, whatever generate.search.thoughts is, so
        # that all its values train on the same puzzles.
        prompter = replace(worker.prompters[question.puzzle.spec.tag], enable_think=True)
        text = response(thoughts, taken(path, question, prompter), prompter)
        most = cfg.generate.sampling.response_length
        return len(template.reply_ids(text, prompter.prefill)) > most

    # Searches run in batches until there are enough examples or no puzzles left.
    while part := list(islice(fresh, min(TOGETHER, wanted - len(chosen)))):
        explored += sum(map(dynamics.actions, part))
        asked = questions(part, worker, dynamics)
        for question, search in zip(asked, dynamics.search(asked), strict=True):
            if search is None or search.path is None:
                dropped["unreadable_state" if search is None else "no_goal"] += 1
                continue
            text = write_search(search)
            if too_long(text, search.path, question):
                dropped["too_long"] += 1
                continue
            dealt = None
            # The control needs a path and room, too, and all kinds of thoughts have the same
            # puzzles.
            if own.dynamics == "simulator":
                false = dealt_search(question, cfg.seed.train)
                if false.path is None:
                    dropped["no_goal_when_dealt"] += 1
                    continue
                dealt = (write_search(false), false.path)
                if too_long(*dealt, question):
                    dropped["too_long_when_dealt"] += 1
                    continue
            chosen.append(Searched(question=question, search=search, text=text, dealt=dealt))
    if len(chosen) < wanted:
        ((reason, _),) = dropped.most_common(1)
        raise DataError(
            f"spa made only {len(chosen)} of {wanted} search examples from {DRAWS * wanted} "
            f"puzzles (dropped: {by_reason(dropped)}). {too_few(reason, own.dynamics)}"
        )
    rows = [
        row_of(each.question, thoughts, path, worker, dynamics)
        for each, (thoughts, path) in zip(chosen, thoughts_of(own.thoughts, chosen), strict=True)
    ]
    return rows, [len(each.search.lines) for each in chosen], dropped, explored


def too_few(reason: str, dynamics: str) -> str:
    """What to do where too few puzzles give an example, by the most frequent reason."""
    if reason in ("too_long", "too_long_when_dealt"):
        return "Raise generate.sampling.response_length, or use a smaller board."
    if dynamics == "model" and reason in ("unreadable_state", "no_goal"):
        return (
            "The model does not predict single moves well: fine-tune on more of them (generate.search.moves). To "
            "test the stages alone, set generate.search.dynamics=simulator and generate.rounds=1."
        )
    if reason == "no_goal":
        return "The game has no way to its goal there. Lower generate.search.examples, or use other puzzles."
    return "The game has too few puzzles. Lower generate.search.examples."


def puzzles(
    cfg: Config, worker: setup.RolloutWorker, dropped: Counter[str], *, most: int
) -> Iterator[Puzzle]:
    """Fresh puzzles; none of validation, and none twice."""
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
        # The last turn in which an action is left.
        last = min(
            prompter.max_turn, -(-prompter.max_actions_per_traj // prompter.max_actions_per_turn)
        )
        turn = 1
        if last > 1 and rng.random() >= cfg.generate.search.start_share:
            turn = int(rng.integers(2, last + 1))
        yield Puzzle(
            number=number,
            spec=spec,
            puzzle_hash=look.hash,
            env=look.env,
            true=true,
            copies=copies,
            text=look.env.state_text(prompter.state_text),
            turn=turn,
            rng=rng,
        )


def questions(
    part: Sequence[Puzzle], worker: setup.RolloutWorker, dynamics: Dynamics
) -> list[Question]:
    """A state of each puzzle: its start, or for a later turn a random one of those that the turns
    before can have led to; the start again where they lead nowhere else."""
    asked = list[Question]()
    per_turn = {tag: each.max_actions_per_turn for tag, each in worker.prompters.items()}
    most = [(each.turn - 1) * per_turn[each.spec.tag] for each in part]
    for puzzle, reached in zip(part, reachable(part, most, dynamics), strict=True):
        prompter = worker.prompters[puzzle.spec.tag]
        # Turns before this one have taken at least one action each. A state that they reach with
        # several numbers of actions counts with the largest: most turns are full.
        actions_to = {
            key: count for count in range(puzzle.turn - 1, len(reached)) for key in reached[count]
        }
        actions_to.pop(puzzle.start, None)
        start = puzzle.start
        turn = 1
        count = 0
        if puzzle.turn > 1 and actions_to:
            start, count = list(actions_to.items())[int(puzzle.rng.integers(len(actions_to)))]
            turn = puzzle.turn
        view = dynamics.view(puzzle, start)
        left = prompter.max_actions_per_traj - count
        asked.append(
            Question(
                puzzle=puzzle,
                start=start,
                view=view,
                turn=turn,
                actions_left=left,
                messages=prompter.first_messages(view, turn=turn, actions_left=left),
            )
        )
    return asked


def reachable(
    part: Sequence[Puzzle], most: Sequence[int], dynamics: Dynamics
) -> list[list[list[str]]]:
    """For each puzzle and each number of actions from 0 to its `most`, the keys of the states that
    exactly so many actions can lead to, without those that end the game."""
    reached = [[[puzzle.start]] for puzzle in part]
    for count in range(max(most, default=0)):
        active = [number for number, limit in enumerate(most) if count < limit]
        asked = [(number, key) for number in active for key in reached[number][count]]
        found = iter(dynamics.expand([(part[number], key) for number, key in asked]))
        for number in active:
            keys = dict[str, None]()  # a set that keeps its order
            for _ in reached[number][count]:
                keys |= {key: None for _, key, outcome in next(found) or () if not outcome}
            reached[number].append(list(keys))
    return reached


def thoughts_of(kind: str, chosen: Sequence[Searched]) -> list[tuple[str, tuple[str, ...]]]:
    """What each response thinks, and the path that its answer begins."""
    texts = [each.text for each in chosen]
    if kind == "other_puzzle":
        texts = of_other_puzzles(texts)
    found = list[tuple[str, tuple[str, ...]]]()
    for each, text in zip(chosen, texts, strict=True):
        assert each.search.path is not None  # others were dropped
        if kind == "dealt":
            assert each.dealt is not None
            found.append(each.dealt)
        else:
            found.append(("" if kind == "none" else text, each.search.path))
    return found


def dealt_search(question: Question, seed: int) -> Search:
    """The search in a world where outcomes are dealt at random among the actions.

    Dealing keeps each state's distance from the start. The order of states at one distance changes,
    so in a large game the limit of lines may come before the goal.
    """
    world = dealt(question.puzzle.true, stream(seed, "search/dealt", question.puzzle.number))
    return breadth_first(question.start, lambda key: world[key])


def of_other_puzzles(texts: Sequence[str]) -> list[str]:
    """For each search another text, with as many lines where there is one: within each length, the
    next in their order; else one of the nearest length. Raises DataError if all are the same."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        by_length[text.count("\n")].append(number)
    found = list[str]()
    for number, text in enumerate(texts):
        own = by_length[text.count("\n")]
        place = own.index(number)
        order = sorted(by_length, key=lambda length: abs(length - text.count("\n")))
        candidates = [
            *own[place + 1 :],
            *own[:place],
            *(other for length in order[1:] for other in by_length[length]),
        ]
        other = next((texts[each] for each in candidates if texts[each] != text), None)
        if other is None:
            raise DataError(
                f"generate.search.thoughts=other_puzzle: all {len(texts)} puzzles have the same search, so none can "
                "take that of another. Raise generate.search.examples, or use other puzzles."
            )
        found.append(other)
    return found


def taken(path: tuple[str, ...], question: Question, prompter: Prompter) -> tuple[str, ...]:
    """As much of the path as a turn takes."""
    return path[: min(prompter.max_actions_per_turn, question.actions_left)]


def response(thoughts: str, actions: Sequence[str], prompter: Prompter) -> str:
    """The response: thoughts, and the actions."""
    answer = f"<answer>{f' {prompter.action_sep} '.join(actions)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer


def row_of(
    question: Question,
    thoughts: str,
    path: tuple[str, ...],
    worker: setup.RolloutWorker,
    dynamics: Dynamics,
) -> WorldModelRow:
    """The example of a response, with what its actions lead to."""
    spec = question.puzzle.spec
    prompter = worker.prompters[spec.tag]
    actions = taken(path, question, prompter)
    played = dynamics.play(question, actions, prompter.state_text)
    return WorldModelRow(
        prompt=question.messages,
        response=response(thoughts, actions, prompter),
        tag=spec.tag,
        episode_id=spec.episode_id,
        turn=question.turn - 1,
        puzzle_seed=spec.puzzle_seed,
        puzzle_hash=question.puzzle.puzzle_hash,
        success=played.success,
        reward=played.reward,
        state=question.view.world_state_text(prompter.state_text),
        next_state=played.next_state,
        executed=played.executed,
    )
