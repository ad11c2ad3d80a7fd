"""Imitation of optimal play without a language model: a nearest neighbour and small networks.

For a fair comparison, callers give `nearest_neighbour` and `network` the number of correct actions
that another method sees: one for each puzzle, at its start or after some random actions. Networks
read one-hot encoded characters of the grid.

`centred_network` is the strongest: it learns from all states of as many puzzles, with all optimal
actions of each, and reads grids that are centred on the player.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from spa.envs.base import TextEnv
from spa.envs.limits import checked_step
from spa.formats.search import GOAL, explore, state_of
from spa.rollout.loop import puzzle_hash
from spa.seeds import stream, stream_seed, torch_stream
from spa_bench.reference.puzzles import different_puzzles

START_SHARE = 0.6
"""Share of labels at the start of a puzzle, as in `generate.search.start_share`."""
HIDDEN = 256
LEARNING_RATE = 3e-3
BATCH = 32

CENTRED_EPOCHS = 10
CENTRED_HIDDEN = 384
CENTRED_LEARNING_RATE = 2e-3
CENTRED_BATCH = 64
DROPOUT = 0.4
WEIGHT_DECAY = 0.1

Player = Callable[[str], Sequence[str]]
"""A function that orders the actions for a grid, the best first."""


@dataclass(frozen=True, slots=True)
class Label:
    """A grid, and optimal actions in it."""

    grid: str
    actions: tuple[str, ...]


def make_labels(
    env: TextEnv, count: int, *, cap: int, seed: int, held_out: Collection[str]
) -> list[Label]:
    """Label a state of each of `count` different puzzles with its first optimal action. No puzzle is
    in `held_out` (content hashes). At most `cap` - 1 random actions precede the labelled state."""
    labels = list[Label]()
    puzzles = different_puzzles(env, seed=seed, purpose="labels", held_out=held_out)
    while len(labels) < count:
        number = next(puzzles)
        rng = stream(seed, "labels/state", number)
        over = False
        for _ in range(0 if rng.random() < START_SHARE else int(rng.integers(1, cap))):
            action = env.to_action(env.random_action(rng))
            assert action is not None
            over = checked_step(env.step(action))[1]
            if over:
                break
        best = () if over else env.expert_actions(1)
        if best:
            labels.append(Label(env.state_text("grid"), best))
    return labels


def label_all_states(
    env: TextEnv, puzzles: int, *, seed: int, held_out: Collection[str]
) -> list[Label]:
    """Label all states of different puzzles with all optimal actions, if the goal can be reached. The puzzles are
    those of `make_labels`. Neither they nor the states, as boards of their own, are in `held_out`
    (content hashes)."""
    labels = list[Label]()
    for _ in islice(
        different_puzzles(env, seed=seed, purpose="labels", held_out=held_out), puzzles
    ):
        true, copies = explore(env)
        steps = {key: copy.optimal_steps() for key, copy in copies.items()}
        for key, copy in copies.items():
            if steps[key] is None or _as_puzzle(copy) in held_out:
                continue
            left = {
                action: 0 if outcome == GOAL else steps.get(state_of(target))
                for action, target, outcome in true[key]
                if outcome in ("", GOAL)
            }
            best = min(count for count in left.values() if count is not None)
            actions = tuple(action for action, count in left.items() if count == best)
            labels.append(Label(copy.state_text("grid"), actions))
    return labels


def _as_puzzle(state: TextEnv) -> str:
    """The content hash of the puzzle that begins in this state."""
    board = state.state_text("grid")
    start = state.clone()
    start.reset(seed=0, options={"board": board})
    return puzzle_hash(start)


def nearest_neighbour(labels: Sequence[Label], players: str = "P", goal: str = "G") -> Player:
    """Build a player that prefers the actions of the most similar labels. Boards must be square with
    one goal and one player, whose symbol is one of `players`.

    Boards are aligned at the player. Each differing cell costs 1 / distance², and a displaced goal
    costs its displacement in rows and columns. Of five similarity measures tried on 4x4 boards,
    this one wins most often.
    """
    width = 2 * labels[0].grid.count("\n") + 1
    middle = width // 2
    rows, cols = np.divmod(np.arange(width**2), width)
    weights = 1 / np.maximum(abs(rows - middle) + abs(cols - middle), 1) ** 2
    views = np.array([_view(label.grid, players) for label in labels])
    goals = (views == goal).argmax(axis=1)

    def play(grid: str) -> Sequence[str]:
        view = _view(grid, players)
        there = int((view == goal).argmax())
        cost = ((views != view) * weights).sum(axis=1)
        cost = cost + abs(rows[goals] - rows[there]) + abs(cols[goals] - cols[there])
        # A dictionary keeps the first place of each action.
        return [*dict.fromkeys(labels[index].actions[0] for index in cost.argsort(kind="stable"))]

    return play


def _view(grid: str, players: str) -> np.ndarray:
    """Flatten a square grid after centring it on the player. Cells beyond the border are `#`."""
    grid = grid.replace(" ", "")
    size = grid.count("\n") + 1
    place = next(index for index, symbol in enumerate(grid) if symbol in players)
    row, col = divmod(place, size + 1)
    view = np.full((2 * size - 1, 2 * size - 1), "#")
    top = size - 1 - row
    left = size - 1 - col
    view[top : top + size, left : left + size] = [[*line] for line in grid.split("\n")]
    return view.ravel()


def centred_network(
    labels: Sequence[Label], *, hidden: int, seed: int, players: str, epochs: int = CENTRED_EPOCHS
) -> Player:
    """Train a network with `hidden` hidden units, or a linear classifier if `hidden` is 0. Boards
    must be square with one player, whose symbol is one of `players`. Returns a player that prefers
    the most probable actions."""
    actions = sorted({action for label in labels for action in label.actions})

    # A letter is the same cell with and without the player, so the case is dropped.
    views = np.char.lower(np.array([_view(label.grid, players) for label in labels]))
    symbols = np.unique(views)

    def features(views: np.ndarray) -> torch.Tensor:
        codes = views[:, :, None] == symbols
        return torch.from_numpy(codes.reshape(len(views), -1))

    inputs = features(views)
    targets = torch.tensor(
        [[action in label.actions for action in actions] for label in labels], dtype=torch.float32
    )
    targets = targets / targets.sum(dim=1, keepdim=True)
    with torch.random.fork_rng(devices=[]):
        # Dropout has no generator of its own.
        torch.manual_seed(stream_seed(seed, "labels/centred weights"))
        model = (
            torch.nn.Sequential(
                torch.nn.Linear(inputs.shape[1], hidden),
                torch.nn.ReLU(),
                torch.nn.Dropout(DROPOUT),
                torch.nn.Linear(hidden, len(actions)),
            )
            if hidden
            else torch.nn.Linear(inputs.shape[1], len(actions))
        )
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=CENTRED_LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        order = torch_stream(seed, "labels/centred")
        _fit(model, optimizer, inputs, targets, epochs, CENTRED_BATCH, order)
    model.eval()

    @torch.no_grad()
    def play(grid: str) -> Sequence[str]:
        view = np.char.lower(_view(grid, players)[None])
        order = model(features(view).float())[0].argsort(descending=True, stable=True)
        return [actions[index] for index in order.tolist()]

    return play


def network(labels: Sequence[Label], *, epochs: int, seed: int) -> Player:
    """Train a network with one hidden layer by AdamW for `epochs` passes over the labels. Returns a
    player that uses it."""
    symbols = sorted({symbol for label in labels for symbol in label.grid})
    actions = sorted({label.actions[0] for label in labels})

    def features(grids: Sequence[str]) -> torch.Tensor:
        # [grids, characters, symbols] -> [grids, characters * symbols]
        codes = np.array([[*grid] for grid in grids])[:, :, None] == np.array(symbols)
        return torch.tensor(codes.reshape(len(grids), -1), dtype=torch.float32)

    inputs = features([label.grid for label in labels])
    targets = torch.tensor([actions.index(label.actions[0]) for label in labels])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "labels/weights"))
        model = torch.nn.Sequential(
            torch.nn.Linear(inputs.shape[1], HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, len(actions)),
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    order = torch_stream(seed, "labels/network")
    _fit(model, optimizer, inputs, targets, epochs, BATCH, order)

    @torch.no_grad()
    def play(grid: str) -> Sequence[str]:
        order = model(features([grid]))[0].argsort(descending=True, stable=True)
        return [actions[index] for index in order.tolist()]

    return play


def _fit(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    epochs: int,
    batch: int,
    order: torch.Generator,
) -> None:
    """Minimize the cross entropy in `epochs` passes over the rows, which `order` shuffles. `inputs`
    are numbers or booleans [N, features], `targets` classes, int64 [N], or probabilities, float32
    [N, classes]."""
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs), generator=order).split(batch):
            loss = torch.nn.functional.cross_entropy(model(inputs[rows].float()), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


TURNED = {"Left": "Up", "Up": "Right", "Right": "Down", "Down": "Left"}
MIRRORED = {"Left": "Right", "Right": "Left", "Up": "Up", "Down": "Down"}


def with_symmetries(labels: Sequence[Label]) -> list[Label]:
    """Transform labels by the eight symmetries of a square board, including their actions."""
    found = list[Label]()
    for label in labels:
        rows = label.grid.split("\n")
        actions = label.actions
        for _ in range(4):
            # A quarter turn to the right makes the first column, read from below, the first row.
            rows = ["".join(column) for column in zip(*reversed(rows), strict=True)]
            actions = tuple(TURNED[action] for action in actions)
            found.append(Label("\n".join(rows), actions))
            mirrored = tuple(MIRRORED[action] for action in actions)
            found.append(Label("\n".join(row[::-1] for row in rows), mirrored))
    return found


def player_success(env: TextEnv, play: Player, limit: int, *, repeat: bool = True) -> bool:
    """Return whether a player wins from the current state within `limit` actions. Without `repeat`,
    it takes the best action that it has not taken in this state before, if there is one."""
    taken = defaultdict[str, set[str]](set)
    for _ in range(limit):
        grid = env.state_text("grid")
        ranked = play(grid)
        name = next((name for name in ranked if repeat or name not in taken[grid]), ranked[0])
        taken[grid].add(name)
        action = env.to_action(name)
        assert action is not None
        _, over, info = checked_step(env.step(action))
        if over:
            return bool(info["success"])
    return False
