"""Successor states for searches: true ones from copies of the game, or predictions of a model that
was trained on single moves."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from spa.envs.base import StateText, TextEnv
from spa.envs.pool import EpisodeSpec
from spa.formats.base import WrittenFormat
from spa.formats.search import GOAL, Successor, Transitions, state_of
from spa.planning.moves import answer_tokens, move_question
from spa.prompts.template import ChatTemplate
from spa.types import Engine, Message, Prompt, SamplingParams

Successors = tuple[Successor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """A new puzzle from which one example is made, and the turn that the example shows."""

    number: int
    spec: EpisodeSpec
    puzzle_hash: str
    env: TextEnv  # in the start state
    true: Transitions  # the true transitions, taken from copies of the game
    copies: Mapping[str, TextEnv]  # state key -> a copy of the game in this nonterminal state
    text: str  # the start state as prompts show it
    turn: int  # from 1
    rng: np.random.Generator  # samples the state if `turn` is above 1

    @property
    def start(self) -> str:
        """Key of the start state."""
        return next(iter(self.true))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A state for which a response is to be written."""

    puzzle: Puzzle
    start: str  # the key of the state
    view: Any  # the game in this state, as prompts show it: a TextEnv or a PredictedView
    turn: int  # from 1
    actions_left: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class PredictedView:
    """A game as prompts show it in a predicted state. All attributes except the texts of the state
    come from `env`, which is in the start state of the puzzle."""

    env: TextEnv
    state: str

    def state_text(self, mode: StateText) -> str:
        """Return the predicted state, which already has the `state_text` mode of the prompts."""
        return self.state

    def world_state_text(self, mode: StateText) -> str:
        """Return the predicted state. The world state cannot differ from it, because the model
        predicts only the text that prompts show."""
        return self.state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Result of the actions of a response."""

    executed: tuple[str, ...]
    next_state: str
    success: bool
    reward: float


class Dynamics(Protocol):
    """Source of successor states."""

    # Numbers of queries and tokens, and shares of correct moves and searches; empty for the
    # simulator.
    counts: dict[str, float]

    def expand(self, asked: Sequence[tuple[Puzzle, str]]) -> list[Successors | None]:
        """Return the successors of each state, which is given by its puzzle and key. The result is
        None for a state whose successors cannot be read."""
        ...

    def view(self, puzzle: Puzzle, key: str) -> Any:
        """Return the game in the state `key`, as prompts show it: a TextEnv or a PredictedView."""
        ...

    def search(self, questions: Sequence[Question], form: WrittenFormat) -> list[Any | None]:
        """Run a search in this format from the state of each question. The result is None for a
        search that reaches a state whose successors cannot be read."""
        ...

    def play(self, question: Question, actions: Sequence[str], mode: StateText) -> Played:
        """Return the result of these actions."""
        ...

    def actions(self, puzzle: Puzzle) -> int:
        """Return the number of transitions that copies of the game made for this puzzle's example.
        Their repetition, which tests that the game is deterministic, is not counted."""
        ...

    def close(self) -> None:
        """Free the memory of the model, if there is one."""
        ...


class Simulator:
    """Successor states from copies of the game."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def expand(self, asked: Sequence[tuple[Puzzle, str]]) -> list[Successors | None]:
        """Return the true successors of each state."""
        return [tuple(puzzle.true[key]) for puzzle, key in asked]

    def view(self, puzzle: Puzzle, key: str) -> TextEnv:
        """Return the copy of the game that is in the state `key`."""
        return puzzle.copies[key]

    def search(self, questions: Sequence[Question], form: WrittenFormat) -> list[Any | None]:
        """Run the searches with the true successors."""
        return search_together(questions, form, self.expand)

    def play(self, question: Question, actions: Sequence[str], mode: StateText) -> Played:
        """Play these actions in a copy of the game, and stop early if the game ends."""
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
        """Return the number of transitions of the puzzle, one for each action in each state."""
        return sum(map(len, puzzle.true.values()))

    def close(self) -> None:
        """Do nothing."""


class LearnedMoves:
    """A model trained on single moves, queried for every action of every state that a search
    expands.

    A query shows a state and an action; the model answers with the key of the next state.
    `TextEnv.text_of_key` renders the text of that state, and the outcome (goal, hole) is read from
    the text. No copy of the game is used for a prediction. Copies are used only to measure the
    accuracy in `counts`.
    """

    def __init__(self, engine: Engine, template: ChatTemplate | None) -> None:
        self.engine = engine
        self.template = template
        self.counts: dict[str, float] = {}
        self._totals: Counter[str] = Counter()
        # (puzzle number, state key) -> successors, so that each state is queried only once
        self._known: dict[tuple[int, str], Successors | None] = {}

    def expand(self, asked: Sequence[tuple[Puzzle, str]]) -> list[Successors | None]:
        """Return the successors that the model predicts. The result is None for a state if one of
        the answers is not the key of a state."""
        new = [each for each in asked if (each[0].number, each[1]) not in self._known]
        if new:
            self._ask(list({(puzzle.number, key): (puzzle, key) for puzzle, key in new}.values()))
        return [self._known[puzzle.number, key] for puzzle, key in asked]

    def view(self, puzzle: Puzzle, key: str) -> PredictedView:
        """Return the game with the text of the state `key`, rendered from the text of the start
        state."""
        state = puzzle.env.text_of_key(puzzle.text, key)
        assert state is not None  # it was checked when the key was predicted
        return PredictedView(puzzle.env, state)

    def search(self, questions: Sequence[Question], form: WrittenFormat) -> list[Any | None]:
        """Run the searches with predicted successors, and measure their accuracy."""
        found = search_together(questions, form, self.expand)
        for question, search in zip(questions, found, strict=True):
            self._count(question, search)
        return found

    def play(self, question: Question, actions: Sequence[str], mode: StateText) -> Played:
        """Predict the result of these actions; the reward is 0, since the model predicts none."""
        key = question.start
        outcome = ""
        for name in actions:
            successors = self._known[question.puzzle.number, key]
            assert successors is not None and not outcome  # a search has found this path
            key, outcome = next(
                (state_of(target), word) for action, target, word in successors if action == name
            )
        return Played(
            executed=tuple(actions),
            next_state=self.view(question.puzzle, key).state,
            success=outcome == GOAL,
            reward=0.0,
        )

    def actions(self, puzzle: Puzzle) -> int:
        """Return 0, because copies of the game are used only to measure the predictions."""
        return 0

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

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
            known = {action: target for action, target, _ in puzzle.true.get(asked_key, ())}
            successors = list[Successor]()
            for action in env.action_names():
                answer = next(completions)
                target = "" if answer.finish_reason == "length" else answer.text.strip()
                self._totals["moves_right"] += known.get(action) == target
                state = env.text_of_key(puzzle.text, state_of(target))
                if state is not None:
                    successors.append((action, target, env.outcome_of_text(state)))
            # One unreadable answer makes the state's line in a search incomplete, so the whole
            # state counts as unreadable.
            whole = len(successors) == len(env.action_names())
            self._known[puzzle.number, asked_key] = tuple(successors) if whole else None

    def _count(self, question: Question, search: Any | None) -> None:
        """Compare a search with the game and update `counts`. A search is correct if all of its
        moves are."""
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


def search_together(
    questions: Sequence[Question],
    form: WrittenFormat,
    expand: Callable[[Sequence[tuple[Puzzle, str]]], Sequence[Successors | None]],
) -> list[Any | None]:
    """Run the searches from the states of `questions` in parallel: each call of `expand` gets the
    next state of every unfinished search. The result is None for a search that reaches a state
    whose successors are None."""
    searches = [form.searching(question.start, question.view) for question in questions]
    found: list[Any | None] = [None] * len(questions)
    asked = [(number, next(search)) for number, search in enumerate(searches)]
    while asked:
        following = list[tuple[int, str]]()
        known = expand([(questions[number].puzzle, key) for number, key in asked])
        for (number, _), successors in zip(asked, known, strict=True):
            if successors is None:
                continue
            try:
                following.append((number, searches[number].send(successors)))
            except StopIteration as end:
                found[number] = end.value
        asked = following
    return found


def reachable(
    part: Sequence[Puzzle], most: Sequence[int], dynamics: Dynamics
) -> list[list[list[str]]]:
    """Find the nonterminal states that can be reached with exactly k actions. Returns their keys as
    one list per puzzle and k, for k from 0 to the puzzle's entry in `most`."""
    reached = [[[puzzle.start]] for puzzle in part]
    for count in range(max(most, default=0)):
        active = [number for number, limit in enumerate(most) if count < limit]
        asked = [(number, key) for number in active for key in reached[number][count]]
        found = iter(dynamics.expand([(part[number], key) for number, key in asked]))
        for number in active:
            keys = dict[str, None]()  # a set that keeps its order
            for _ in reached[number][count]:
                keys |= {
                    state_of(target): None
                    for _, target, outcome in next(found) or ()
                    if not outcome
                }
            reached[number].append(list(keys))
    return reached
