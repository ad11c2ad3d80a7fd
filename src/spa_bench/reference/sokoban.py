"""Sokoban policies that know the walls (greedy walk and look-ahead by distances around walls), labels
of optimal actions, and a learner that counts the effects of moves."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, permutations, product
from typing import Any, TypeVar

from spa.envs.base import TextEnv
from spa.envs.reference import NextAction
from spa.rollout.loop import content_hash
from spa.seeds import stream
from spa_bench.reference.labels import Label, with_symmetries
from spa_bench.reference.puzzles import different_puzzles, most_frequent, random_moves
from spa_games.sokoban import Sokoban, room_text
from spa_games.sokoban_rooms import Room
from spa_games.solvers.sokoban import fewest_moves

State = tuple[int, frozenset[int]]
"""The player's cell and the boxes' cells."""
Node = TypeVar("Node", bound=Hashable)


def look_ahead_around_walls(depth: int, *, remember: bool) -> NextAction:
    """Build a policy that searches up to `depth` moves ahead for the state with the smallest
    `distance`. It takes the first move towards this state. Ties go to fewer moves, then are broken
    at random.

    With `remember`, no move leads to a state that the episode has already visited. The policy knows
    the rules and the walls. It needs rooms with the default action names, and returns None in other
    games.
    """
    visited = set[State]()

    def play(env: TextEnv, rng: Any) -> str | None:
        if not isinstance(env, Sokoban):
            return None
        now = env.player, frozenset(env.boxes)
        if env.steps == 0:
            visited.clear()
        if remember:
            visited.add(now)
        values = [
            _least_distance(env.room, moved(env.room, now, delta), depth, visited)
            for delta in env.room.deltas()
        ]
        best = [
            name
            for name, value in zip(env.action_names(), values, strict=True)
            if value == min(values)
        ]
        return best[int(rng.integers(len(best)))]

    return play


def walk_around_walls(env: TextEnv, rng: Any) -> str | None:
    """The move to the state with the smallest `distance` to the goal. The cost of a box is its
    number of steps to the target around walls, as if it could be pushed from every side. Ties are
    broken at random. None in other games."""
    if not isinstance(env, Sokoban):
        return None
    now = env.player, frozenset(env.boxes)
    costs = [
        distance(env.room, moved(env.room, now, delta), _steps_to) for delta in env.room.deltas()
    ]
    best = [
        name for name, cost in zip(env.action_names(), costs, strict=True) if cost == min(costs)
    ]
    return best[int(rng.integers(len(best)))]


def _least_distance(room: Room, start: State, depth: int, visited: set[State]) -> tuple[float, int]:
    """The smallest distance within `depth` - 1 moves after `start`, and the number of these
    moves."""
    found = [(float("inf"), depth)]
    frontier = {start} - visited
    for steps in range(depth):
        found += [(distance(room, state, pushes_to), steps) for state in frontier]
        frontier = {
            moved(room, state, delta)
            for state in frontier
            if state[1] != frozenset(room.targets)
            for delta in room.deltas()
        } - visited
    return min(found)


def moved(room: Room, state: State, delta: int) -> State:
    """The state after a move. A blocked move changes nothing."""
    player, boxes = state
    ahead = player + delta
    if ahead not in room.floor:
        return state
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + delta
    if beyond not in room.floor or beyond in boxes:
        return state
    return ahead, boxes - {ahead} | {beyond}


BoxCosts = Callable[[Room, int], dict[int, int]]
"""A function of (room, target) that returns, for each cell, the cost of moving a box from there to
the target."""


@lru_cache(maxsize=100_000)
def distance(room: Room, state: State, box_costs: BoxCosts) -> float:
    """Estimate the distance of a state from the goal.

    It is twice the boxes' total cost to the targets, plus the player's steps to a cell from which a
    push reduces that cost. The player walks around walls and boxes. Infinite if some box cannot
    reach a target.
    """
    player, boxes = state
    if boxes == frozenset(room.targets):
        return 0.0
    costs = {target: box_costs(room, target) for target in room.targets}
    far = float("inf")
    least, order = min(
        (sum(costs[target].get(box, far) for box, target in zip(boxes, order, strict=True)), order)
        for order in permutations(room.targets)
    )
    steps = _spread([player], lambda cell: _free(room, boxes, cell))
    near = [
        steps[box - delta]
        for box, target in zip(boxes, order, strict=True)
        for delta in room.deltas()
        if box - delta in steps
        and box + delta not in boxes
        and costs[target].get(box + delta, far) < costs[target].get(box, far)
    ]
    # If no push helps now, use a number of steps that exceeds the distance to any cell.
    return 2.0 * least + min(near, default=len(room.floor))


def _free(room: Room, boxes: frozenset[int], cell: int) -> list[int]:
    around = [cell + delta for delta in room.deltas()]
    return [place for place in around if place in room.floor and place not in boxes]


@lru_cache(maxsize=10_000)
def pushes_to(room: Room, target: int) -> dict[int, int]:
    """The fewest pushes that bring a single box from each cell to the target. The player is assumed
    to reach every side of the box. Cells without a way to the target are missing."""

    def before(cell: int) -> list[int]:
        return [
            cell - delta
            for delta in room.deltas()
            if {cell - delta, cell - 2 * delta} <= room.floor
        ]

    return _spread([target], before)


@lru_cache(maxsize=10_000)
def _steps_to(room: Room, target: int) -> dict[int, int]:
    return _spread([target], lambda cell: _free(room, frozenset(), cell))


def _spread(start: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]]) -> dict[Node, int]:
    """Search breadth-first from `start`. Returns the number of steps to everything reachable."""
    steps = dict.fromkeys(start, 0)
    queue = deque(steps)
    while queue:
        node = queue.popleft()
        for near in neighbours(node):
            if near not in steps:
                steps[near] = steps[node] + 1
                queue.append(near)
    return steps


def one_box_at_a_time(env: TextEnv, rng: Any) -> str | None:
    """The first move of a shortest way to bring one box to a free target while the other boxes stay.
    If there is none, a random move. None in other games."""
    if not isinstance(env, Sokoban):
        return None
    boxes = frozenset(env.boxes)
    targets = frozenset(env.room.targets)
    left = list[tuple[int, int]]()
    for box, target in product(boxes - targets, targets - boxes):
        # The other boxes are walls.
        floor = env.room.floor - (boxes - {box})
        alone = replace(env.room, floor=floor, targets=(target,))
        for index, delta in enumerate(alone.deltas()):
            player, moved_box = moved(alone, (env.player, frozenset({box})), delta)
            steps = fewest_moves(replace(alone, player=player, boxes=tuple(moved_box)))
            if steps is not None:
                left.append((steps, index))
    names = env.action_names()
    return names[min(left)[1] if left else int(rng.integers(len(names)))]


def room_lookup(labels: Sequence[Label]) -> NextAction:
    """Build a policy that takes the action of the label with the same grid, up to the eight symmetries.
    For other grids, it is `look_ahead_around_walls` of one move that does not return."""
    best = {label.grid: label.actions[0] for label in with_symmetries(labels)}
    otherwise = look_ahead_around_walls(1, remember=True)

    def play(env: TextEnv, rng: Any) -> str | None:
        # It also remembers the states in which a label decides.
        action = otherwise(env, rng)
        return best.get(env.state_text("grid"), action)

    return play


def label_all_rooms(
    env: Sokoban, rooms: int, *, seed: int, held_out: Collection[str]
) -> list[Label]:
    """Label all states of different rooms from which the goal can be reached, as
    `labels.label_all_states` does for small games."""
    labels = list[Label]()
    for _ in islice(different_puzzles(env, seed=seed, purpose="labels", held_out=held_out), rooms):
        room = env.room
        ahead = _transitions(room)
        back = defaultdict[State, list[State]](list)
        for state, targets in ahead.items():
            for target in targets:
                back[target].append(state)
        solved = [state for state in ahead if state[1] == frozenset(room.targets)]
        steps = _spread(solved, back.__getitem__)
        for state, count in steps.items():
            grid = room_text(replace(room, player=state[0], boxes=tuple(state[1])))
            if count == 0 or content_hash(grid) in held_out:
                continue
            best = [
                name
                for name, target in zip(env.action_names(), ahead[state], strict=True)
                if steps.get(target) == count - 1
            ]
            labels.append(Label(grid, tuple(best)))
    return labels


def _transitions(room: Room) -> dict[State, tuple[State, ...]]:
    """The state after each move, for every state that the start leads to. No move follows a
    solution."""
    goal = frozenset(room.targets)
    found = dict[State, tuple[State, ...]]()

    def after(state: State) -> tuple[State, ...]:
        moves = tuple(moved(room, state, delta) for delta in room.deltas())
        found[state] = () if state[1] == goal else moves
        return found[state]

    _spread([(room.player, frozenset(room.boxes))], after)
    return found


Rules = Mapping[str, str]
"""Maps the symbols of the cell ahead, and of the cell beyond it if there is a box ahead, to what a
move does: `stay`, `step` or `push`."""
BOXES = "X√"


def count_rules(env: Sokoban, moves: int, *, cap: int, seed: int) -> Rules:
    """Count what moves do in `moves` random moves in random rooms, at most `cap` in each. Returns the
    most frequent effect of each situation that was seen. Rooms must show the default symbols and
    action names."""
    counts = defaultdict[str, Counter[str]](Counter)

    def look() -> tuple[str, State]:
        return env.state_text("grid"), (env.player, frozenset(env.boxes))

    rng = stream(seed, "sokoban rules/moves")
    played = random_moves(env, moves, rng, seed=seed, purpose="sokoban rules", look=look, most=cap)
    for (grid, (player, boxes)), name in played:
        effect = "stay" if env.player == player else "step" if env.boxes == boxes else "push"
        delta = env.room.deltas()[env.action_names().index(name)]
        counts[_situation(grid, player, delta)][effect] += 1
    return most_frequent(counts)


def _situation(grid: str, player: int, delta: int) -> str:
    ahead = grid[player + delta]
    return ahead + grid[player + 2 * delta] if ahead in BOXES else ahead


def counted_plan(rules: Rules) -> NextAction:
    """Build a policy that takes the first move of a shortest solution under counted rules, and plans
    again after every move. A situation without a rule counts as `stay`. Without a solution it moves at
    random. It returns None in other games."""

    def play(env: TextEnv, rng: Any) -> str | None:
        if not isinstance(env, Sokoban):
            return None
        index = _first_move(rules, env.room, (env.player, frozenset(env.boxes)))
        names = env.action_names()
        return names[int(rng.integers(len(names))) if index is None else index]

    return play


def _first_move(rules: Rules, room: Room, start: State) -> int | None:
    """The index of the first move of a shortest solution under counted rules; None if they lead to
    none."""
    first = dict[State, int | None]({start: None})
    queue = deque([start])
    while queue:
        state = queue.popleft()
        move = first[state]
        if state[1] == frozenset(room.targets):
            return move
        for index, target in enumerate(_believed(rules, room, state)):
            if target not in first:
                first[target] = index if move is None else move
                queue.append(target)
    return None


def _believed(rules: Rules, room: Room, state: State) -> list[State]:
    """The state after each move, according to counted rules."""
    player, boxes = state
    grid = room_text(replace(room, player=player, boxes=tuple(boxes)))
    found = list[State]()
    for delta in room.deltas():
        effect = rules.get(_situation(grid, player, delta), "stay")
        ahead = player + delta
        moved_boxes = boxes - {ahead} | {ahead + delta} if effect == "push" else boxes
        found.append(state if effect == "stay" else (ahead, moved_boxes))
    return found
