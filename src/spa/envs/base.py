"""The contract of an environment: a Gymnasium environment whose observation is text."""

import copy
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from spa.envs.labels import find_label
from spa.envs.limits import checked_step
from spa.errors import ConfigError

StateText = Literal["grid", "coords", "grid_and_coords"]
"""Text form of a state: the grid, the coordinate sentence, or the grid followed by the sentence."""

Action = int | str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a constraint satisfaction problem, such as a cell of a Sudoku.

    value: "" if the variable is open. neighbours: the keys of the variables whose values must differ
    from this one's. actions: the action that assigns each value of the domain.
    """

    value: str
    neighbours: tuple[str, ...]
    actions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PushPuzzle:
    """The board of a game in which a player pushes boxes onto targets.

    The key of a cell is its row and its column, a digit each; that of a state (`state_key`) is the
    player's cell, then those of the boxes in order. rows: the cells within the border. floor: those
    without a wall. steps: rows and columns that each action adds to the player's cell. at: a copy of
    the game in the state of a key; None if there is none.
    """

    rows: tuple[tuple[str, ...], ...]
    floor: frozenset[str]
    targets: tuple[str, ...]
    steps: Mapping[str, tuple[int, int]]
    at: Callable[[str], "TextEnv | None"]


class TextEnv(gymnasium.Env[str, Action]):
    """A game that is shown as text and played with named or free-text actions.

    `reset(seed=s)` fixes the puzzle. Chance inside an episode (slips, payouts) comes from a stream
    of its own, seeded by `options={"noise_seed": n}`, so that members of a group share the puzzle
    and not the noise. Without the option the noise is derived from the puzzle seed.
    `reset(seed=None)` draws the puzzle seed from `self.np_random`.

    `step` returns Gymnasium's five values. `info` always has `action_is_valid` (the action could be
    understood and is allowed), `action_is_effective` (it changed the state) and `success` (the goal
    is reached). The observation that `reset` and `step` return is
    `state_text(self.default_state_text)`.
    """

    default_state_text: StateText = "grid"

    finite_puzzles: bool = False
    """True if there are so few puzzles that training and validation share them; the environment's
    card says so."""

    players: int = 1
    """Number of players. With several, `step` is a move of `current_player`, and `info` has each
    player's result: `rewards` (numbers) and `successes` (bool), in the order of the players;
    `reward` and `success` are the mover's."""

    max_steps: int = sys.maxsize
    """After how many `steps` a game truncates its episodes, if it does: the optimum keeps to it."""

    steps: int = 0
    """Actions of this episode, in a game with `max_steps`."""

    changes: tuple[str, ...] | None = None
    """Attributes that `step` changes in place (lists, sets, streams), for `clone` to copy; all else
    is shared. None: the environment cannot be copied this way."""

    @abstractmethod
    def state_text(self, mode: StateText) -> str:
        """The current state as text, without trailing newline; defined in every state, terminal
        ones included.

        Environments without coordinates (word problems, a shop) return the same text for every
        mode.
        """

    def current_player(self) -> int:
        """Index of the player to move, 0 to `players` - 1."""
        return 0

    def look_as(self, player: int) -> None:
        """From now on speak to this player: states, instruction and legal actions are what he sees.
        Nothing to do where all see the same."""

    def world_state_text(self, mode: StateText) -> str:
        """Text of the current state that an agent should know. World-model responses are trained on
        it and measured against it, as observation and, after the actions, as prediction. Same
        arguments as `state_text`, and by default the same text.

        Where the agent does not see everything, this may be the simulator's facts, or the part of
        them that matters.
        """
        return self.state_text(mode)

    def image(self) -> np.ndarray | None:
        """The current state as a picture, uint8 [H, W, 3], if prompts show it in place of the state
        text; else None.

        The text stays what world-model data, predictions and reports are made of.
        """
        return None

    def to_action(self, text: str) -> Action | None:
        """The action that a model's text stands for, or None if it stands for none: by default the
        number, from 1, of the label in `action_names`, whatever its case. Never raises.

        The same in every state: all actions of a turn are read before the first of them is taken,
        so a text that only a later state allows is understood already now. Whether it is allowed is
        for `step` to say.
        """
        return find_label(text, self.action_names())

    @abstractmethod
    def instruction(self, mode: StateText) -> str:
        """The rules of the game for the first prompt, in words that match this instance's options,
        symbols and size.

        If `mode` shows coordinates, the text also says how they count (origin, order, and the range
        of this board).
        """

    def legend(self) -> dict[str, str]:
        """Symbol -> meaning, from this instance's options; empty if the state is not a grid."""
        return {}

    def action_names(self) -> tuple[str, ...]:
        """The labels that `to_action` understands; empty if actions are free text."""
        return ()

    def legal_actions(self) -> tuple[str, ...]:
        """The action texts that are allowed in the current state, as far as they can be listed;
        empty if they cannot, and anything once the game is over: nothing hangs on it then. Shown to
        the model where `custom_envs.TAG.show_legal_actions` says so."""
        return self.action_names()

    def random_action(self, rng: Any) -> str:
        """A uniformly random legal action as text, sampled from the NumPy generator `rng`: the
        `random` policy. Never asked for when the game is over.

        Raises ConfigError if there is nothing to draw from: an environment of free-text actions
        writes its own.
        """
        names = self.legal_actions() or self.action_names()
        if not names:
            raise ConfigError(
                f"{type(self).__name__}: random_action finds no action, because action_names "
                "and legal_actions return none in this state. Implement random_action if "
                "actions are free text"
            )
        return names[int(rng.integers(len(names)))]

    def random_plan(self, rng: Any, count: int) -> tuple[str, ...]:
        """`count` uniformly random legal actions for one turn, by `random_action`; not for
        environments to write.

        Where actions or their legality may depend on the state, the plan is played in a copy as it
        is sampled, and each action is sampled in the state before it. The copy's chance is its own:
        a plan knows as little of what will happen as its player, so chance may still make an action
        illegal. Where the game cannot be copied, and for what would come after its end or after the
        player's own moves, the state at the beginning of the turn counts.
        """
        twin = self._rehearsal(rng) if count > 1 else None
        plan: list[str] = []
        for _ in range(count):
            plan.append((twin or self).random_action(rng))
            action = None if twin is None else twin.to_action(plan[-1])
            if twin is not None and action is not None:
                over = (
                    # `checked_step` returns (reward, ended, info).
                    checked_step(twin.step(action))[1]
                    or twin.current_player() != self.current_player()
                )
                # Once the game or the player's turn is over in the copy, the rest of the plan is
                # sampled in the state at the start of the turn.
                twin = None if over else twin
        return tuple(plan)

    def _rehearsal(self, rng: Any) -> "TextEnv | None":
        """A copy to play a random plan in; None if the labels are legal in every state, or if there
        is no copy."""
        kind = type(self)
        if (
            kind.random_action is TextEnv.random_action
            and kind.legal_actions is TextEnv.legal_actions
        ):
            return None
        try:
            # The seed of the game's copy comes from a copy of the generator, so that `rng` itself
            # still gives the same random numbers for the plan.
            return self.clone(int(copy.deepcopy(rng).integers(2**31)))
        except NotImplementedError:
            return None

    def example_actions(self) -> tuple[str, ...]:
        """One to three action texts for the prompt's sample response, good ones in the current
        state and in this order: the solver's if there is one. A sample that would give answers away
        is for the environment to avoid."""
        return self.expert_actions(3)[:3] or self.action_names()[:3]

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """Best play from the current state as action texts, at most `limit` of them; empty if the
        environment has no solver or the goal cannot be reached any more. Where chance decides, only
        the next action."""
        return ()

    def optimal_steps(self) -> int | None:
        """The fewest actions from the current state to the goal if each does what it is meant to;
        None if there is no solver or no way."""
        return None

    difficulty_unit: str = "fewest actions"
    """Unit of `puzzle_difficulty`, in words for a table."""

    def puzzle_difficulty(self) -> int | None:
        """The difficulty of the puzzle right after `reset`, by which evaluations group puzzles; None
        if it is not known."""
        return self.optimal_steps()

    def best_success(self, limit: int) -> float | None:
        """The probability that the best policy reaches the goal from the current state within
        `limit` actions; None if it is not known."""
        steps = self.optimal_steps()
        return None if steps is None else float(steps <= self.within_steps(limit))

    def within_steps(self, limit: int) -> int:
        """`limit` actions, or fewer if `max_steps` ends the episode before."""
        return min(limit, self.max_steps - self.steps)

    def greedy_action(self, rng: Any) -> str | None:
        """The next action of a walk that follows a distance to the goal, ties at random by the
        NumPy generator `rng`: a reference policy.

        It uses nothing but what the prompt tells, and does not look ahead. None where the game
        offers no such walk.
        """
        return None

    def goal_distance(self) -> float | None:
        """An estimate of how far the current state is from the goal, 0 at the goal: the reference
        policy that tries each action once prefers states with a low one. None where the game
        has none."""
        return None

    def state_value(self, text: str) -> float | None:
        """The value of a state, written as `world_state_text` writes it (by a model, perhaps), on
        its own.

        1 the goal is reached, -1 it is out of reach, 0 neither can be read from it; None if the
        environment cannot say. Planners play the response whose predicted state has the highest
        value. It must not solve the puzzle.
        """
        return None

    def clone(self, noise_seed: int | None = None) -> "TextEnv":
        """An independent copy of the running game: the same actions lead both to the same states,
        and neither notices what is done to the other.

        The copy continues the original's noise stream, which is copied; with
        `noise_seed`, what is sampled from here on comes from that seed. Raises NotImplementedError
        where a game cannot be copied; then `spa.envs.branch` plays its actions again.
        """
        if self.changes is None:
            raise NotImplementedError
        # The shallow copy shares all objects; those that `step` changes in place are copied below.
        twin = copy.copy(self)
        # `_np_random` is Gymnasium's generator. `reset(seed=None)` samples from it, so the twin
        # needs its own.
        for name in ("_np_random", *self.changes):
            setattr(twin, name, copy.deepcopy(getattr(twin, name)))
        if noise_seed is not None:
            twin.renew_noise(noise_seed)
        return twin

    def renew_noise(self, noise_seed: int) -> None:
        """Draw chance from a stream of this seed from now on; nothing to do where there is no
        chance."""

    state_key_format: tuple[str, str] = ("state", "states in short")
    """Words for a state of a written search, or for a variable of `constraint_problem`: its name in
    prompts, and the name of its short form."""

    def state_key(self) -> str | None:
        """A short name of the current state for written searches, without blanks, colons and
        semicolons; states with the same name have the same future. None: the game has no short
        names."""
        return None

    def state_outcome(self) -> str:
        """The status of the current state for a written search, in a word. "goal" if the goal is
        reached, another word of the game if it is out of reach (hole, dead), else ""."""
        return ""

    def constraint_problem(self) -> Mapping[str, Variable] | None:
        """The current state as a constraint satisfaction problem, for derivations: the variables by
        key, in the order in which they are filled.

        Each value that a variable's neighbours leave over can be assigned, and the goal is reached
        once all variables have values. Keys, values and actions have no blanks, colons and equals
        signs. None: the game is none.
        """
        return None

    def push_puzzle(self) -> PushPuzzle | None:
        """The board for a best-first search, as prompts show it; None: the game is none of pushing
        boxes."""
        return None

    def key_of_text(self, text: str) -> str | None:
        """The name of the state that a text shows, from the text alone; None if it shows none."""
        return None

    def text_of_key(self, text: str, key: str) -> str | None:
        """The text of the state `key` of the puzzle that a text shows, from both alone; None if
        there is none."""
        return None

    def outcome_of_text(self, text: str) -> str:
        """Return the outcome of the state in a text, as `state_outcome` names it, from the text
        alone: compare it with the goal or hole that the text names."""
        return ""

    @abstractmethod
    def puzzle_text(self) -> str:
        """Text that identifies the puzzle (the initial state with everything hidden from view): two
        episodes with the same text are the same puzzle. Splits and the train/validation check hash
        it."""


def look_as_mover(env: TextEnv) -> None:
    """Show states as the player who is to move sees them."""
    if env.players > 1:
        env.look_as(env.current_player())
