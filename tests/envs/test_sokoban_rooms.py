"""The generator against the original: the same backwards play to the cell, the same distribution of puzzles."""

import json
from collections import Counter, deque
from math import sqrt
from pathlib import Path

import pytest

from spa import seeds
from spa_games.sokoban import Sokoban
from spa_games.sokoban_rooms import Room, _pull_apart, generate_room
from spa_games.solvers.sokoban import fewest_moves, live_cells, shortest_moves

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "golden" / "sokoban_reference.json").read_text(encoding="utf-8")
)


def cells_of(drawing: str, symbols: str) -> tuple[int, ...]:
    return tuple(cell for cell, symbol in enumerate(drawing) if symbol in symbols)


@pytest.mark.parametrize(
    "case", REFERENCE["backwards_play"], ids=range(len(REFERENCE["backwards_play"]))
)
def test_backwards_play_finds_what_the_original_finds(case):
    before, after = case["before"], case["after"]
    rows, cols = before.count("\n") + 1, before.index("\n")
    targets = cells_of(before, "O")
    room = Room(rows, cols, frozenset(cells_of(before, "_OP")), targets, targets, before.index("P"))
    found = _pull_apart(room, case["search_depth"])
    assert sorted(found.boxes) == list(cells_of(after, "X"))
    assert found.player == after.index("P")


def two_sample(ours: Counter, theirs: Counter) -> tuple[float, float]:
    """Chi-squared statistic of two samples over bins of at least 20 pooled counts, and its 1 % critical value."""
    bins, pooled = [], [0, 0]
    for value in sorted(ours | theirs):
        pooled = [pooled[0] + ours[value], pooled[1] + theirs[value]]
        if sum(pooled) >= 20:
            bins, pooled = [*bins, pooled], [0, 0]
    bins[-1] = [bins[-1][0] + pooled[0], bins[-1][1] + pooled[1]]
    left, right = sqrt(theirs.total() / ours.total()), sqrt(ours.total() / theirs.total())
    statistic = sum((left * a - right * b) ** 2 / (a + b) for a, b in bins)
    freedom = len(bins) - 1
    # Wilson and Hilferty
    critical = freedom * (1 - 2 / (9 * freedom) + 2.3263 * sqrt(2 / (9 * freedom))) ** 3
    return statistic, critical


def test_simple_sokoban_is_distributed_as_the_original():
    """3,000 puzzles against the 6,000 that the original's own code made: two-sample tests at 1 %."""
    rooms = [generate_room(seeds.stream(seed, "sokoban/puzzle"), 6, 6, 1) for seed in range(3000)]
    ours = {
        "optimal_steps": Counter(fewest_moves(room) for room in rooms),
        "floor_cells": Counter(len(room.floor) for room in rooms),
    }
    for name, counts in ours.items():
        theirs = Counter({int(value): count for value, count in REFERENCE[name].items()})
        statistic, critical = two_sample(counts, theirs)
        assert statistic < critical, name


def test_the_two_sample_test_notices_a_difference():
    """With a shallower backwards play the lengths differ, and the test says so."""
    theirs = Counter({int(value): count for value, count in REFERENCE["optimal_steps"].items()})
    rooms = [
        generate_room(seeds.stream(seed, "t"), 6, 6, 1, search_depth=6) for seed in range(3000)
    ]
    statistic, critical = two_sample(Counter(fewest_moves(room) for room in rooms), theirs)
    assert statistic > 2 * critical


def brute_force(room: Room, cost_of_walking: int) -> int | None:
    """Fewest moves (or pushes) by a search over single states, with no pruning."""
    start = (room.player, frozenset(room.boxes))
    costs, queue = {start: 0}, deque([start])
    while queue:
        player, boxes = state = queue.popleft()
        if boxes == frozenset(room.targets):
            return costs[state]
        for delta in room.deltas():
            ahead, cost, after = player + delta, cost_of_walking, boxes
            if ahead not in room.floor:
                continue
            if ahead in boxes:
                if ahead + delta not in room.floor or ahead + delta in boxes:
                    continue
                after, cost = boxes - {ahead} | {ahead + delta}, 1
            if costs.get((ahead, after), 10**9) > costs[state] + cost:
                costs[ahead, after] = costs[state] + cost
                (queue.append if cost else queue.appendleft)((ahead, after))
    return None


@pytest.mark.parametrize("boxes", [1, 2])
def test_solutions_are_shortest_and_solve(boxes):
    env = Sokoban(num_boxes=boxes, search_depth=30)
    for seed in range(40):
        env.reset(seed=seed)
        moves = shortest_moves(env.room)
        assert moves is not None and len(moves) == fewest_moves(env.room) == brute_force(
            env.room, 1
        )
        ends = [env.step(move + 1)[2] for move in moves]
        assert ends == [False] * (len(moves) - 1) + [True]


def test_a_box_in_a_corner_is_hopeless():
    env = Sokoban()
    env.reset(options={"board": "######\n#X___#\n#_P__#\n#____#\n#__O_#\n######"})
    assert shortest_moves(env.room) is None and fewest_moves(env.room) is None
    assert (
        env.expert_actions(10) == ()
        and env.optimal_steps() is None
        and env.best_success(10) is None
    )


def test_live_cells():
    """From the corners and along the wall without a target nothing can be pushed to the target at (2,2)."""
    floor = frozenset(row * 6 + col for row in range(1, 4) for col in range(1, 4))
    live = live_cells(floor, (2 * 6 + 2,), 5)
    assert live == sum(1 << cell for cell in (2 * 6 + 2,))
    floor = frozenset(row * 7 + col for row in range(1, 5) for col in range(1, 5))
    live = live_cells(floor, (1 * 7 + 2,), 6)
    expected = {(1, 2), (1, 3), (2, 2), (2, 3), (3, 2), (3, 3)}
    assert {divmod(cell, 7) for cell in range(49) if live >> cell & 1} == expected


def test_expert_play_and_hooks():
    env = Sokoban()
    env.reset(options={"board": "######\n#____#\n#_P__#\n#_X__#\n#__O_#\n######"})
    assert env.optimal_steps() == 4 and env.best_success(3) == 0.0 and env.best_success(4) == 1.0
    assert len(env.expert_actions(2)) == 2
    for action in env.expert_actions(10):
        env.step(action)
    assert env.on_target == 1 and env.optimal_steps() == 0 and env.expert_actions(5) == ()
