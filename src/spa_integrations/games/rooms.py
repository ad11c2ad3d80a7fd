"""Generate TextWorld games, and render their facts as text: all facts, or what the player can see."""

import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from spa_integrations.games import load_package
from spa_integrations.games.randomness import OwnRandomness

SIDES = ("north", "south", "east", "west")


def fact_lines(facts: Iterable[Any]) -> list[str]:
    """Return every fact as `name(argument, …)`, sorted. P is the player, I its inventory."""
    return sorted(
        f"{fact.name}({', '.join(argument.name for argument in fact.arguments)})" for fact in facts
    )


def describe_room(facts: Iterable[Any]) -> str:
    """Describe what the player can see: the room, the things in it, the exits, and the inventory.
    This includes things in open containers and on supporters. Things are listed in a fixed order,
    with their conditions (open, locked, cooked …)."""
    known = [(fact.name, *(argument.name for argument in fact.arguments)) for fact in facts]
    # `at(P, kitchen)` gives the player's room.
    here = next(place for name, who, *place in known if name == "at" and who == "P")[0]
    conditions: dict[str, list[str]] = {}
    for name, *arguments in sorted(known):
        # Facts with one argument, such as `open(chest)`, are conditions of a thing.
        if len(arguments) == 1 and name not in ("edible", "visited"):
            conditions.setdefault(arguments[0], []).append(name)

    def described(thing: str) -> str:
        inside = sorted(
            item for name, item, *holder in known if name in ("in", "on") and holder == [thing]
        )
        # The player cannot see into a closed container.
        closed = {"closed", "locked"} & set(conditions.get(thing, ()))
        state = f" ({', '.join(conditions[thing])})" if thing in conditions else ""
        return (
            thing
            + state
            + (f" [{'; '.join(map(described, inside))}]" if inside and not closed else "")
        )

    things = sorted(
        thing for name, thing, *place in known if name == "at" and place == [here] and thing != "P"
    )
    carried = sorted(thing for name, thing, *place in known if name == "in" and place == ["I"])
    return "\n".join(
        [
            f"Room: {here}",
            f"Here: {'; '.join(map(described, things)) or 'nothing'}",
            f"Exits: {'; '.join(_exits(known, here, described)) or 'none'}",
            f"Carried: {'; '.join(map(described, carried)) or 'nothing'}",
        ]
    )


def _exits(known: list[tuple[str, ...]], here: str, described: Any) -> list[str]:
    """List each exit of room `here`, with its door if it has one."""
    exits = []
    # The fact `north_of(a, b)` means that a lies north of b. Facts have no order, so the order of
    # the directions is fixed here.
    for side in SIDES:
        for name, *rooms in known:
            if name == f"{side}_of" and rooms[1] == here:
                doors = [door for link, *ends in known if link == "link" and ends[0] == here and ends[2] == rooms[0]
                         for door in [ends[1]]]  # fmt: skip
                exits.append(f"{side} through {described(doors[0])}" if doors else side)
    return exits


@lru_cache(maxsize=256)
def made(task: str, settings: tuple[tuple[str, Any], ...], seed: int) -> Any:
    """Generate and load a game. The result is cached, so all callers with these arguments share it.
    Each must use a shallow copy, whose state `reset` replaces."""
    library = load_package("textworld")
    options = library.GameOptions()
    options.seeds = seed
    infos = library.EnvInfos(facts=True, policy_commands=True, admissible_commands=True)
    # The generator writes a file, from which the game is loaded. The file is not needed afterwards.
    with OwnRandomness(seed), tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "game.json")
        load_package("textworld", "textworld.challenges").CHALLENGES[task][1](
            dict(settings), options
        ).save(file)
        game = load_package("textworld", "textworld.envs.tw").TextWorldEnv(infos)
        game.load(file)
    return game
