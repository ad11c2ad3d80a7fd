"""Measure forms of written best-first searches in Sokoban, before anything is trained on them: lines,
tokens, and what errors of a writer cost.

    python benchmarks/sokoban_search.py [--tokenizer FOLDER] [--write FILE]

Each form orders the states of the same rooms by other estimates. `FORMS` names them; `mark` is the one of
the preset. Two errors are those of a writer: wrong estimates, and lines that expand any other open state. Wrong
moves are those of a world model, in the facts before the search, too. A plan is right if it solves the room.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from spa.config.load import load_config
from spa.envs.base import TextEnv
from spa.envs.registry import make_env
from spa.formats.registry import format_of
from spa.formats.search import (
    GOAL,
    BreadthFirst,
    OpenStates,
    Successor,
    expanding,
    run_search,
)
from spa.models.load import model_source

PRESETS = {"paper's rooms": "smol_sokoban_search", "hard rooms": "smol_sokoban_hard_search"}
SEEDS = range(300_000, 300_300)
CAP = 10
"""Actions of an episode."""
LIMITS = (384, 512, 768, 1024, 1280, 1536)
"""Lengths of responses."""
ENDS = 20
RESULTS = Path(__file__).parent / "results/sokoban_search.json"
ERRORS: dict[str, dict[str, float]] = {
    "none": {},
    "estimate wrong in 20 %": {"estimate": 0.2},
    "estimate wrong in 60 %": {"estimate": 0.6},
    "another open state in 20 % of lines": {"state": 0.2},
    "move wrong in 1 %": {"move": 0.01},
    "move wrong in 5 %": {"move": 0.05},
    "move wrong in 10 %": {"move": 0.1},
}
FORM: Any = format_of(load_config("smol_sokoban_search").agent_proxy.response_format)
States: Any = FORM.states


def cells(key: str) -> list[str]:
    return [key[place : place + 2] for place in range(0, len(key), 2)]


def apart(cell: str, other: str) -> int:
    return abs(int(cell[0]) - int(other[0])) + abs(int(cell[1]) - int(other[1]))


class Erring(States):
    """The states of a form, written with errors."""

    chance: random.Random
    errors: dict[str, float]

    def wrong(self, kind: str) -> bool:
        return kind in self.errors and self.chance.random() < self.errors[kind]

    def next(self) -> str | None:
        if len(self._ranks) > 1 and self.wrong("state"):
            return self.chance.choice([*self._ranks])
        return super().next()

    def number(self, value: int) -> int:
        """A number of an estimate; a wrong one is off by 1 or 2."""
        return (
            max(0, value + self.chance.choice((-2, -1, 1, 2))) if self.wrong("estimate") else value
        )


class Mark(Erring):
    """The form of the preset: a wrong estimate has the other mark."""

    def status(self, key: str, after: str, outcome: str) -> str:
        right = super().status(key, after, outcome)
        if right[0] in "+-" and self.wrong("estimate"):
            return right.translate(str.maketrans("+-", "-+"))
        return right


class Number(Erring):
    """The player's distance to the pushing cell as a number, compared after the pushes."""

    def status(self, key: str, after: str, outcome: str) -> str:
        right = super().status(key, after, outcome)
        if right[0] not in "+-":
            return right
        return f"+{right[1:]}.{self.number(self.steps(after))}"

    def steps(self, key: str) -> int:
        aim = self.aim(key)
        return apart(key[:2], aim) if aim else 0

    def add(self, after: str, path: tuple[str, ...], status: str) -> None:
        if status[0] == "+":
            pushes, _, steps = status[1:].partition(".")
            super().add(after, path, f"+{pushes}")
            self._ranks[after] = (*self._ranks[after][:1], int(steps), -len(self.paths))


class Sum(Number):
    """One number: twice the pushes, and the player's distance to the pushing cell."""

    def status(self, key: str, after: str, outcome: str) -> str:
        right = States.status(self, key, after, outcome)
        if right[0] not in "+-":
            return right
        pushes = sum(map(int, right[1:].split(",")))
        return f"+{self.number(2 * pushes + self.steps(after))}"

    def add(self, after: str, path: tuple[str, ...], status: str) -> None:
        States.add(self, after, path, status)


class Pushes(Erring):
    """The pushes alone."""

    def status(self, key: str, after: str, outcome: str) -> str:
        right = super().status(key, after, outcome)
        return f"+{right[1:]}" if right[0] in "+-" else right


FORMS = {"mark": Mark, "number": Number, "sum": Sum, "pushes": Pushes}


Room = tuple[int, TextEnv, Callable[[str], Sequence[Successor]]]
"""Its seed, the game, and the true successors of its states."""


def run(room: Room, form: type, errors: dict[str, float]) -> tuple[Any, int]:
    """The search of a form in a room, with errors, and the number of states whose moves it asks for."""
    seed, env, true = room
    chance = random.Random(f"{form.__name__} {sorted(errors)} {seed}")

    @cache
    def expand(key: str) -> Sequence[Successor]:
        successors = list[Successor](true(key))
        ends = [each[1:] for each in successors]
        for place, (action, after, _) in enumerate(successors):
            others = [end for end in ends if end[0] != after]
            if others and "move" in errors and chance.random() < errors["move"]:
                successors[place] = (action, *chance.choice(others))
        return successors

    def begin(*arguments: Any) -> Any:
        states = form(*arguments)
        states.chance, states.errors = chance, errors
        return states

    FORM.states = begin
    try:
        search = run_search(FORM.searching(env.state_key() or "", env), expand)
        return search, expand.cache_info().currsize
    finally:
        FORM.states = States


def solves(env: TextEnv, path: Sequence[str] | None) -> bool:
    """Return whether a plan solves the room within the cap."""
    twin = env.clone()
    for name in (path or ())[:CAP]:
        twin.step(twin.to_action(name) or 0)
    return twin.state_outcome() == GOAL


def breadth_first(room: Room) -> tuple[int, str]:
    """Lines and text of the search that the other presets write; "" if it finds no goal."""
    _, env, true = room
    form = BreadthFirst()
    search = run_search(expanding(OpenStates(env.state_key() or "")), true)
    return len(search.lines), "" if search.path is None else form.written(search, env)


def figures(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "mean": round(sum(values) / len(values), 1),
        "p90": ordered[int(0.9 * len(ordered))],
        "max": ordered[-1],
    }


def measure(preset: str, count: Callable[[str], int]) -> dict[str, Any]:
    """All figures of the rooms of a preset."""
    cfg = load_config(preset)
    spec = cfg.custom_envs[cfg.es_manager.train.env_configs.tags[0]]
    env = make_env(spec.env_type, spec.env_config)
    found: dict[str, Any] = {"rooms": len(SEEDS), "two_boxes": 0}
    rooms = list[Room]()
    for seed in SEEDS:
        env.reset(seed=seed)
        game = env.clone()
        rooms.append((seed, game, FORM.reference(game)))
        found["two_boxes"] += len(cells(game.state_key() or "")) == 3
    optimum = [game.optimal_steps() for _, game, _ in rooms]
    found["shortest_path"] = figures([each or 0 for each in optimum])
    wide = [breadth_first(room) for room in rooms]
    found["breadth_first"] = {
        "lines": figures([lines for lines, _ in wide]),
        "tokens": figures([count(text) for _, text in wide if text]),
        "solved": sum(bool(text) for _, text in wide) / len(rooms),
    }
    for name, form in FORMS.items():
        runs = [run(room, form, {}) for room in rooms]
        searches = [search for search, _ in runs]
        texts = [
            FORM.written(search, game)
            for search, (_, game, _) in zip(searches, rooms, strict=True)
            if search.path is not None
        ]
        paths = [None if search.path is None else len(search.path) for search in searches]
        found[name] = {
            "lines": figures([len(search.lines) for search in searches]),
            "tokens": figures([count(text) for text in texts]),
            "map_and_facts": figures([count(header(text)) for text in texts]),
            "states_asked": figures([asked for _, asked in runs]),
            # The tags and the answer take `ENDS` tokens.
            "fits": {
                str(limit): sum(count(text) + ENDS <= limit for text in texts) / len(rooms)
                for limit in LIMITS
            },
            "solved": sum(path is not None for path in paths) / len(rooms),
            "shortest": sum(a == b for a, b in zip(paths, optimum, strict=True)) / len(rooms),
            "plan_right": {
                error: sum(solves(room[1], run(room, form, rates)[0].path) for room in rooms)
                / len(rooms)
                for error, rates in ERRORS.items()
            },
        }
        print(preset, name, json.dumps(found[name]), flush=True)
    return found


def header(text: str) -> str:
    """The lines before those of the search."""
    return text[: text.index(":")].rpartition("\n")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokens count")
    parser.add_argument("--write", type=Path, default=RESULTS, help="file of the figures")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(model_source(arguments.tokenizer))
    found = {
        board: measure(preset, lambda text: len(tokenizer(text)["input_ids"]))
        for board, preset in PRESETS.items()
    }
    arguments.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
