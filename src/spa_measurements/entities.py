"""Entities of a state text: find their cells, and check whether the grid and the coordinate
sentence agree.

This works for any environment that writes states as grids or as coordinate sentences
(`spa.envs.coords`). Other texts have no entities.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spa.worldmodel import accuracy

# A cell `(1,2)`, or a cell with its value `(1,2)=4`. The value ends at white space, `;`, `,` or a
# full stop.
_CELL = re.compile(r"\((\d+),(\d+)\)(=\S+?(?=[\s;.,]|$))?")
# The one-character symbol after an entity's name: the P of `Player (P)`, but not `(0,1)`.
_SYMBOL = re.compile(r"\(([^()\s])\)")
# The words between an entity and its cells: ` is at`, ` are`, ` at`, `:`.
_VERB = re.compile(r"\s+(?:is|are)(?:\s+at)?\s*$|\s+at\s*$|\s*:\s*$", re.IGNORECASE)

Entities = dict[str, frozenset[str]]
"""Entity name -> its cells such as `(1,2)` or `(1,2)=4`, and its remarks such as `in a hole`."""


def is_sentence(line: str) -> bool:
    """Return whether a line of a state is a sentence of coordinates rather than a row of a grid."""
    return _CELL.search(line) is not None or accuracy.is_sentence(line)


def sentence_entities(text: str) -> Entities:
    """Return the entities of the coordinate sentence in `text`. Empty if there is no such sentence.

    A clause ends with `;` or at the end of its line. An entity's name is its symbol in brackets if
    it has one, otherwise its words. A clause that states the absence of an entity ("no holes (O)")
    gives the entity without cells.

    Example: "Player (P) is at (0,1) in a hole; no goals (G)." -> {"P": {"(0,1)", "in a hole"}, "G":
    {}}
    """
    cells_of: Entities = {}
    for line in text.splitlines():
        if not is_sentence(line):
            continue
        for clause in line.rstrip(" .").split(";"):
            cells = list(_CELL.finditer(clause))
            head = clause[: cells[0].start()] if cells else clause
            symbol = _SYMBOL.search(head)
            # A clause without cells names an entity only to state its absence: `no holes (O)`.
            if not cells and (symbol is None or not head.strip().lower().startswith("no ")):
                continue
            name = symbol.group(1) if symbol else _VERB.sub("", head.strip()).lower()
            # Text after the last cell is a remark: the `in a hole` of `Player (P) is at (0,1) in a
            # hole`.
            tail = clause[cells[-1].end() :].strip(" .") if cells else ""
            said = {f"({c[1]},{c[2]}){c[3] or ''}" for c in cells} | ({tail} if tail else set())
            # Several clauses may describe the same entity.
            cells_of[name] = cells_of.get(name, frozenset()) | said
    return cells_of


def grid_cells(text: str) -> dict[tuple[int, int], str]:
    """Read the grid in `text` as (row, column) -> symbol, counted from 0. Empty if there is none.

    A one-line grid with `|` between its rows (Sudoku) is split into rows.
    """
    lines = [line for line in text.splitlines() if line.strip() and not is_sentence(line)]
    if len(lines) == 1 and "|" in lines[0]:
        lines = [part for part in lines[0].split("|") if part.strip()]
    return {
        (row, column): symbol
        for row, line in enumerate(lines)
        for column, symbol in enumerate(accuracy.state_units(line))
    }


def entities(text: str) -> Entities:
    """Return the entities of the coordinate sentence. For a state without one, every symbol of the
    grid is an entity."""
    cells_of = sentence_entities(text)
    if cells_of:
        return cells_of
    cells: dict[str, set[str]] = {}
    for (row, column), symbol in grid_cells(text).items():
        cells.setdefault(symbol, set()).add(f"({row},{column})")
    return {symbol: frozenset(places) for symbol, places in cells.items()}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Consistency check between a state's grid and its coordinate sentence, learned from true
    states."""

    offset: int  # number of the first row and column in the sentence, 0 or 1
    # for every cell of every true state: the entities that the sentence places there, and the
    # symbol in the grid
    pairs: frozenset[tuple[frozenset[str], str]]

    @classmethod
    def learn(cls, truths: Iterable[str]) -> "Agreement | None":
        """Learn the check from true states. Returns None if no state has both a grid and a
        sentence."""
        known = [
            text for text in dict.fromkeys(truths) if grid_cells(text) and sentence_entities(text)
        ]
        if not known:
            return None
        # Sentences may count cells from 0 or from 1. A wrong offset pairs entities with arbitrary
        # symbols, so the right offset is the one with fewer distinct pairs.
        tables = [
            cls(offset, frozenset().union(*(_pairs(text, offset) for text in known)))
            for offset in (0, 1)
        ]
        return min(tables, key=lambda table: len(table.pairs))

    def holds(self, text: str) -> bool:
        """Return whether a state has a grid and a sentence, and all of their pairs occur in true
        states."""
        return (
            bool(grid_cells(text))
            and bool(sentence_entities(text))
            and _pairs(text, self.offset) <= self.pairs
        )


def _pairs(text: str, offset: int) -> frozenset[tuple[frozenset[str], str]]:
    """Pair the entities that the sentence places at each cell with the symbol in the grid. The
    symbol of a cell outside the grid is ""."""
    symbols = grid_cells(text)
    # cell -> entities that the sentence places there
    at: dict[tuple[int, int], set[str]] = {place: set() for place in symbols}
    for name, said in sentence_entities(text).items():
        for item in said:
            match = _CELL.fullmatch(item)
            if match:
                place = (int(match[1]) - offset, int(match[2]) - offset)
                at.setdefault(place, set()).add(name + (match[3] or ""))
    return frozenset((frozenset(names), symbols.get(place, "")) for place, names in at.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityScore:
    """Accuracy of the predictions of one entity over many transitions."""

    exact: float  # share of transitions in which every statement about the entity is correct
    # the same share over the transitions in which the entity changed; None if it never changed
    changed_exact: float | None
    f1: float  # over single cells and remarks
    n: int  # number of transitions with the entity in the true or predicted state
    changed: int  # number of these transitions in which the entity changed


def entity_scores(triples: Iterable[tuple[str | None, str, str]]) -> dict[str, EntityScore]:
    """Score the predictions of each entity. Each triple has the texts of the predicted state, the
    true state and the state before. A prediction of None has no entities.

    Entities that are in no true state have no score. A prediction that invents one counts as wrong
    in other metrics.
    """
    read = [
        (entities(said or ""), entities(truth), entities(before)) for said, truth, before in triples
    ]
    # Names are collected from all transitions. A prediction of an entity that occurs only in other
    # true states then counts as wrong.
    known = {name for _, true, _ in read for name in true}
    counts: dict[str, list[int]] = {}
    for said, true, old in read:
        for name in (true.keys() | said.keys()) & known:
            ours = said.get(name, frozenset())
            theirs = true.get(name, frozenset())
            right = name in said and name in true and ours == theirs
            moved = theirs != old.get(name, frozenset())
            # Per entity: transitions, right, moved, right and moved, 2 x shared statements, and the
            # number of statements on both sides. The last two make F1 = 2 |A & B| / (|A| + |B|).
            row = counts.setdefault(name, [0] * 6)
            for index, value in enumerate(
                (1, right, moved, right and moved, 2 * len(ours & theirs))
            ):
                row[index] += value
            row[5] += len(ours) + len(theirs)
    return {name: _score(row) for name, row in sorted(counts.items())}


def _score(row: list[int]) -> EntityScore:
    n, right, moved, right_moved, shared, both = row
    return EntityScore(
        exact=right / n,
        changed_exact=right_moved / moved if moved else None,
        f1=shared / both if both else 1.0,
        n=n,
        changed=moved,
    )


def named(scores: Mapping[str, EntityScore], legend: Mapping[str, str]) -> dict[str, EntityScore]:
    """Add the meanings of symbols from the legend to the names of the scores."""
    return {
        f"{legend[name]} ({name})" if name in legend else name: score
        for name, score in scores.items()
    }
