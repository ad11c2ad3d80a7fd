"""Worlds of a few turns, small enough to enumerate every episode, and tabular policies with exact
gradients."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A possible result of an action. `state` is the next state, or None if the episode ends."""

    probability: float
    reward: float
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A decision process of at most `max_turns` turns, and the logits of the policy that acts in
    it."""

    name: str
    text: str
    start: str
    actions: Mapping[str, Mapping[str, tuple[Outcome, ...]]]  # state -> action -> outcomes
    logits: Mapping[str, tuple[float, ...]]  # state -> logits, in the order of `actions`
    max_turns: int = 4

    @property
    def states(self) -> list[str]:
        """All states, in the order of their indices in `Episodes.states`."""
        return list(self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """All possible episodes of a world under its policy. There are N episodes, K turns and P
    parameters (one logit per state and action)."""

    probability: Tensor  # float64 [N]
    rewards: Tensor  # float64 [N, K]
    states: Tensor  # int64   [N, K]  -1 after the end
    scores: Tensor  # float64 [N, K, P]  gradient of log pi(action | state); 0 after the end
    # float64 [N, K]: the policy's exact value of the state at that turn; 0 after the end
    values: Tensor

    @property
    def present(self) -> Tensor:
        """bool [N, K]: turns that were played."""
        return self.states >= 0

    @property
    def gradient(self) -> Tensor:
        """float64 [P]: the exact gradient of the expected reward, which is the sum of p R grad log
        p over all episodes."""
        outcome = self.rewards.sum(dim=1)
        return ((self.probability * outcome)[:, None] * self.scores.sum(dim=1)).sum(dim=0)


def enumerate_episodes(world: World) -> Episodes:
    """Enumerate every episode of a world with its probability."""
    # A single vector [P] has the parameters of all states. The logits of a state begin at its
    # offset.
    offsets = {}
    width = 0
    for state, actions in world.actions.items():
        offsets[state] = width
        width += len(actions)
    index = {state: number for number, state in enumerate(world.states)}
    pi = {
        state: torch.softmax(torch.tensor(world.logits[state], dtype=torch.float64), 0)
        for state in world.states
    }
    # Keyed by state and turn, because the value of a state depends on the number of turns left.
    known: dict[tuple[str, int], float] = {}
    episodes: list[tuple[float, list[tuple[str, int, float]]]] = []

    def value(state: str | None, turn: int) -> float:
        if state is None or turn == world.max_turns:
            return 0.0
        if (state, turn) not in known:
            known[state, turn] = sum(
                float(p) * outcome.probability * (outcome.reward + value(outcome.state, turn + 1))
                for p, outcomes in zip(pi[state], world.actions[state].values(), strict=True)
                for outcome in outcomes
            )
        return known[state, turn]

    # Search depth-first over all actions and outcomes. Each leaf is one episode.
    def play(state: str | None, probability: float, turns: list[tuple[str, int, float]]) -> None:
        if state is None or len(turns) == world.max_turns:
            episodes.append((probability, turns))
            return
        for number, outcomes in enumerate(world.actions[state].values()):
            for outcome in outcomes:
                chance = probability * float(pi[state][number]) * outcome.probability
                play(outcome.state, chance, [*turns, (state, number, outcome.reward)])

    play(world.start, 1.0, [])
    depth = max(len(turns) for _, turns in episodes)
    rewards = torch.zeros(len(episodes), depth, dtype=torch.float64)
    states = torch.full((len(episodes), depth), -1)
    values = torch.zeros_like(rewards)
    scores = torch.zeros(len(episodes), depth, width, dtype=torch.float64)
    for row, (_, turns) in enumerate(episodes):
        for turn, (state, action, reward) in enumerate(turns):
            rewards[row, turn], states[row, turn], values[row, turn] = (
                reward,
                index[state],
                value(state, turn),
            )
            part = slice(offsets[state], offsets[state] + len(pi[state]))
            # grad log softmax: 1 for the chosen action, minus pi for every action of the state.
            scores[row, turn, part] = -pi[state]
            scores[row, turn, offsets[state] + action] += 1.0
    chances = torch.tensor([chance for chance, _ in episodes], dtype=torch.float64)
    return Episodes(
        probability=chances, rewards=rewards, states=states, scores=scores, values=values
    )


def _certain(reward: float, state: str | None) -> tuple[Outcome, ...]:
    return (Outcome(probability=1.0, reward=reward, state=state),)


# Q(stop) = 0.4 and Q(go) = 0.5 + 0.2, so dJ/dz = p (1 - p) (0.7 - 0.4) = 0.075 at p = 1/2.
STOP_OR_GO = World(
    name="stop or go",
    text="the action `stop` pays 0.4. The action `go` pays 0 or 1 at random, and then 0.2 in a "
    "second turn with one action",
    start="start",
    actions={
        "start": {
            "stop": _certain(0.4, None),
            "go": (
                Outcome(probability=0.5, reward=0.0, state="end"),
                Outcome(probability=0.5, reward=1.0, state="end"),
            ),
        },
        "end": {"finish": _certain(0.2, None)},
    },
    logits={"start": (0.0, 0.0), "end": (0.0,)},
)
"""The example in docs/methods.md, from verl-project/verl#7244."""

# Credit assignment over several turns: the reward for opening the door is due to taking the key.
# The state `last` is reached with and without the key.
KEY_AND_DOOR = World(
    name="key and door",
    text="an agent needs a key to open a door, and gets its reward at the end of up to three turns",
    start="start",
    actions={
        "start": {"take key": _certain(0.0, "key"), "walk on": _certain(0.0, "no key")},
        "key": {"open": _certain(1.0, None), "wait": _certain(0.0, "last")},
        "no key": {"open": _certain(0.0, None), "wait": _certain(0.0, "last")},
        "last": {"look": _certain(0.2, None), "leave": _certain(0.0, None)},
    },
    logits={"start": (0.0, 0.5), "key": (0.0, 0.0), "no key": (0.3, 0.0), "last": (0.0, 0.0)},
)

# Random rewards of -1 or +1 are larger than the 0.3 for the right action, so estimators differ in
# noise.
NOISY_TURNS = World(
    name="noisy turns",
    text="each of two turns pays -1 or +1 at random, and an additional 0.3 for the right action",
    start="first",
    actions={
        state: {
            name: (
                Outcome(probability=0.5, reward=-1.0 + bonus, state=after),
                Outcome(probability=0.5, reward=1.0 + bonus, state=after),
            )
            for name, bonus in (("right", 0.3), ("wrong", 0.0))
        }
        for state, after in (("first", "second"), ("second", None))
    },
    logits={"first": (0.0, 0.0), "second": (0.0, 0.0)},
)

# The same state occurs at different turns. The expected reward depends on the turns left, so the
# state alone is a biased anchor for GiGPO.
REVISITS = World(
    name="revisits",
    text="an agent moves between a hall and a room for up to four turns, and may take a prize in the room",
    start="hall",
    actions={
        "hall": {"wait": _certain(0.0, "hall"), "enter": _certain(0.0, "room")},
        "room": {
            "take": (
                Outcome(probability=0.7, reward=1.0, state=None),
                Outcome(probability=0.3, reward=0.0, state="hall"),
            ),
            "leave": _certain(0.0, "hall"),
        },
    },
    logits={"hall": (0.4, 0.0), "room": (0.0, 0.0)},
)

WORLDS: tuple[World, ...] = (STOP_OR_GO, KEY_AND_DOOR, NOISY_TURNS, REVISITS)
