"""Interface of environments: Gymnasium environments whose observations are text. Actions are free
text, or have labels that are numbered from 1."""

import copy
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from spa.envs.limits import checked_step
from spa.errors import ConfigError

StateText = Literal["grid", "coords", "grid_and_coords"]
"""Text form of a state: the grid, the coordinate sentence, or the grid followed by the sentence."""

Action = int | str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a constraint satisfaction problem, such as a cell of a Sudoku.

    `value` is "" while the variable is unassigned. `neighbours` contains the keys of the variables
    whose values must differ from this one. `actions` maps each value of the domain to the action
    that assigns it.
    """

    value: str
    neighbours: tuple[str, ...]
    actions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PushPuzzle:
    """The board of a game in which a player pushes boxes onto targets.

    The key of a cell is its row and column, one digit each. The key of a state (`state_key`) is the
    player's cell followed by the boxes' cells in order.

    `floor` contains the cells that are not walls, and `targets` the target cells. `steps` maps each
    action to its row and column offset. `at` returns a copy of the game in the state with a given
    key, or None if there is no such state.
    """

    floor: frozenset[str]
    targets: tuple[str, ...]
    steps: Mapping[str, tuple[int, int]]
    at: Callable[[str], "TextEnv | None"]


class TextEnv(gymnasium.Env[str, Action]):
    """A game that is shown as text and played with named or free-text actions.

    `reset(seed=s)` fixes the puzzle. Chance inside an episode (slips, payouts) comes from a
    separate stream, seeded by `options={"noise_seed": n}`, so that members of a group share the
    puzzle but not the noise. Without this option, the noise is derived from the puzzle seed.
    `reset(seed=None)` samples the puzzle seed from `self.np_random`.

    `step` returns Gymnasium's five values. `info` always has `action_is_valid` (the action is
    understood and allowed), `action_is_effective` (it changed the state) and `success` (the goal is
    reached). The observation that `reset` and `step` return is
    `state_text(self.default_state_text)`.
    """

    default_state_text: StateText = "grid"

    finite_puzzles: bool = False
    """True if there are so few puzzles that training and validation must share them."""

    players: int = 1
    """Number of players. With several, `step` is a move of `current_player`, and `info` has
    `rewards` (numbers) and `successes` (bool) of all players, in order. `reward` and `success`
    refer to the player who moved."""

    max_steps: int = sys.maxsize
    """Number of steps after which the game truncates an episode. `best_success` counts only steps
    up to this limit."""

    steps: int = 0
    """Number of actions taken in this episode. Games that set `max_steps` must count them."""

    changes: tuple[str, ...] | None = None
    """Attributes that `step` changes in place (lists, sets, streams), which `clone` must copy;
    copies share all others. None: the environment cannot be copied this way."""

    @abstractmethod
    def state_text(self, mode: StateText) -> str:
        """Return the current state as text, without a trailing newline. It must work in every
        state, including terminal ones.

        Environments without coordinates (word problems, a shop) return the same text for every
        mode.
        """

    def current_player(self) -> int:
        """Return the index of the player to move, from 0 to `players` - 1."""
        return 0

    def look_as(self, player: int) -> None:
        """Switch states, instruction and legal actions to the view of `player`. Games in which all
        players see the same need not override this."""

    def world_state_text(self, mode: StateText) -> str:
        """Return the part of the current state that an agent should know, as text.

        World-model training and evaluation use it as the target. Before a turn's actions, it is the
        correct observation; after them, the correct prediction. By default, it is the same as
        `state_text(mode)`.

        In a partially observed game, this may be the simulator's hidden state, or the relevant part
        of it.
        """
        return self.state_text(mode)

    def image(self) -> np.ndarray | None:
        """Return the current state as an image, uint8 [H, W, 3], if prompts show it instead of the
        state text; else None.

        World-model data, predictions and reports still use the text.
        """
        return None

    def to_action(self, text: str) -> Action | None:
        """Return the action that a model's text names, or None if it names no action. By default,
        the action is the number, from 1, of the label in `action_names` that equals the text,
        ignoring case. Never raises.

        The result must not depend on the state: all actions of a turn are parsed before the first
        is executed, so a text that only a later state allows must already be understood. `step`
        decides whether it is allowed.
        """
        return find_label(text, self.action_names())

    @abstractmethod
    def instruction(self, mode: StateText) -> str:
        """Return the rules of the game for the first prompt. They must match this instance's
        options, symbols and size.

        If `mode` shows coordinates, the text also explains them (origin, order, and the range of
        this board).
        """

    def legend(self) -> dict[str, str]:
        """Return symbol -> meaning for this instance's options; empty if the state is not a
        grid."""
        return {}

    def action_names(self) -> tuple[str, ...]:
        """Return the labels that `to_action` understands; empty if actions are free text."""
        return ()

    def legal_actions(self) -> tuple[str, ...]:
        """Return the action texts that are allowed in the current state; empty if they cannot be
        listed. After the end of the game, the result is arbitrary.

        Prompts list these actions if `custom_envs.TAG.show_legal_actions` is set.
        """
        return self.action_names()

    def random_action(self, rng: Any) -> str:
        """Sample a uniformly random legal action with the NumPy generator `rng`, as the `random`
        policy does. Never called when the game is over.

        Raises ConfigError if no actions are listed: an environment with free-text actions must
        override this method.
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
        """Sample `count` uniformly random legal actions for one turn with `random_action`.
        Environments do not override this.

        If actions or their legality may depend on the state, the plan is executed in a copy during
        sampling, and each action is sampled in the state that precedes it. The copy has its own
        noise, so random events of the real game may still make an action illegal. If the game
        cannot be copied, all actions are sampled in the state at the start of the turn. The same
        applies to actions after the copy's game, or the player's turn in it, has ended.
        """
        twin = self._trial_copy(rng) if count > 1 else None
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

    def _trial_copy(self, rng: Any) -> "TextEnv | None":
        """Return a copy in which to execute a random plan; None if all labels are legal in every
        state, or if the game cannot be copied."""
        kind = type(self)
        if (
            kind.random_action is TextEnv.random_action
            and kind.legal_actions is TextEnv.legal_actions
        ):
            return None
        try:
            # The copy's seed comes from a copy of the generator, so that `rng` itself still gives
            # the same random numbers for the plan.
            return self.clone(int(copy.deepcopy(rng).integers(2**31)))
        except NotImplementedError:
            return None

    def example_actions(self) -> tuple[str, ...]:
        """Return one to three action texts for the prompt's sample response: good moves from the
        current state, in order. By default they come from the solver, or else are the first labels.

        An environment must override this method if the moves would reveal answers.
        """
        return self.expert_actions(3)[:3] or self.action_names()[:3]

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """Return at most `limit` best actions from the current state, as texts. In a game with
        chance, return only the next action.

        Empty if the environment has no solver or the goal cannot be reached.
        """
        return ()

    def optimal_steps(self) -> int | None:
        """Return the smallest number of actions from the current state to the goal, assuming no
        random events. None if there is no solver or no solution."""
        return None

    difficulty_unit: str = "fewest actions"
    """Unit of `puzzle_difficulty`, as a table heading."""

    def puzzle_difficulty(self) -> int | None:
        """Return the difficulty of the puzzle, by which evaluations group puzzles; None if it is
        unknown. Called right after `reset`."""
        return self.optimal_steps()

    def best_success(self, limit: int) -> float | None:
        """Return the probability that the best policy reaches the goal from the current state
        within `limit` actions; None if it is unknown. By default, assumes no random events."""
        steps = self.optimal_steps()
        return None if steps is None else float(steps <= self.within_steps(limit))

    def within_steps(self, limit: int) -> int:
        """Return the number of actions that can still be taken: `limit`, or fewer if `max_steps`
        ends the episode earlier."""
        return min(limit, self.max_steps - self.steps)

    def greedy_action(self, rng: Any) -> str | None:
        """Return the next action of a greedy walk that reduces a distance to the goal. Ties are
        broken at random with the NumPy generator `rng`. The walk serves as a reference policy.

        The walk uses only what the prompt shows, and does not look ahead. Returns None if the game
        has no such walk.
        """
        return None

    def goal_distance(self) -> float | None:
        """Estimate the distance from the current state to the goal, 0 at the goal. The one-step
        look-ahead policy prefers states with a small distance. None if the game has no estimate."""
        return None

    def state_value(self, text: str) -> float | None:
        """Estimate the value of a state from its text alone. The text has the form of
        `world_state_text`, and a model may have written it.

        Returns 1 if the goal is reached, -1 if it can no longer be reached, and 0 if neither
        follows from the text; None if the environment has no values. Planners choose the response
        whose predicted state has the highest value. The method must not solve the puzzle.
        """
        return None

    def clone(self, noise_seed: int | None = None) -> "TextEnv":
        """Return an independent copy of the running game. The same actions lead to the same states
        in both, and neither affects the other.

        The copy continues a copy of the noise stream. With `noise_seed`, it uses a new stream with
        that seed instead. Raises NotImplementedError if a game cannot be copied; then
        `spa.envs.branch` replays its actions.
        """
        if self.changes is None:
            raise NotImplementedError
        # The shallow copy shares all objects. The objects that `step` changes in place are copied
        # below.
        twin = copy.copy(self)
        # `_np_random` is Gymnasium's generator. `reset(seed=None)` samples from it, so the twin
        # needs its own.
        for name in ("_np_random", *self.changes):
            setattr(twin, name, copy.deepcopy(getattr(twin, name)))
        if noise_seed is not None:
            twin.renew_noise(noise_seed)
        return twin

    def renew_noise(self, noise_seed: int) -> None:
        """Replace the game's noise stream by a new one with the seed `noise_seed`. Games without
        chance need not override this."""

    state_key_format: tuple[str, str] = ("state", "states in short")
    """Two phrases for prompts that ask for a written search: the name of a state, and a description
    of its short form. For games with a `constraint_problem`, the phrases describe a variable
    instead."""

    def state_key(self) -> str | None:
        """Return a short name of the current state for written searches, without blanks, colons and
        semicolons.

        States with equal names must have the same future. None if the game has no short names.
        """
        return None

    def way(self, key: str, action: str) -> str:
        """Return the intermediate stop of a move: what `action`, taken in the state `key` of this
        puzzle, passes or meets before it reaches the next state. Empty if there is nothing.

        Written searches and examples of single moves show it before the next state: `23c` in
        `Left23c>13`. It must not contain blanks, colons, semicolons and `>`.
        """
        return ""

    def state_outcome(self) -> str:
        """Return the status of the current state for a written search, as one word: "goal" if the
        goal is reached, another word such as "hole" or "dead" if it can no longer be reached, else
        ""."""
        return ""

    def constraint_problem(self) -> Mapping[str, Variable] | None:
        """Return the current state as a constraint satisfaction problem, for responses that derive
        a solution: the variables by key, in the order in which they are filled.

        A variable can be assigned any value that none of its neighbours has. The goal is reached
        once all variables have values. Keys, values and actions contain no blanks, colons and
        equals signs. None if the game is not a constraint satisfaction problem.
        """
        return None

    def push_puzzle(self) -> PushPuzzle | None:
        """Return the board as prompts show it, for a best-first search; None if the game is not
        about pushing boxes."""
        return None

    def key_of_text(self, text: str) -> str | None:
        """Return the `state_key` of the state that a text shows, using the text alone; None if the
        text shows no state."""
        return None

    def text_of_key(self, text: str, key: str) -> str | None:
        """Render the state `key` of the puzzle that `text` shows, using `text` and `key` alone;
        None if the puzzle has no such state."""
        return None

    def outcome_of_text(self, text: str) -> str:
        """Return the outcome of the state that a text shows, in the words of `state_outcome`. Uses
        the text alone: for example, whether the player is on the goal or in the hole that the text
        names."""
        return ""

    @abstractmethod
    def puzzle_text(self) -> str:
        """Return a text that identifies the puzzle: the initial state, including everything hidden
        from view. Two episodes with the same text have the same puzzle. The hash of this text
        assigns puzzles to splits and reveals overlap between training and validation."""


def look_as_mover(env: TextEnv) -> None:
    """Show states from the view of the player to move."""
    if env.players > 1:
        env.look_as(env.current_player())


LONGEST_LABEL = 200
"""Maximum length of a label in characters; longer texts are not compared with labels."""


def find_label(text: object, names: tuple[str, ...]) -> int | None:
    """Return the number, from 1, of the label that equals `text`; None if there is none. Ignores
    case and surrounding white space."""
    if not isinstance(text, str) or len(text) > LONGEST_LABEL:
        return None
    wanted = text.strip().lower()
    return next(
        (number for number, name in enumerate(names, start=1) if name.lower() == wanted), None
    )


def action_index(action: object, names: tuple[str, ...]) -> int | None:
    """Return the index in `names`, from 0, of an action given by its number (from 1) or its label;
    None if there is no such action."""
    if isinstance(action, str):
        action = find_label(action, names)
    # True is an int in Python and would pass as action 1.
    if isinstance(action, bool) or not isinstance(action, int | np.integer):
        return None
    return int(action) - 1 if 1 <= action <= len(names) else None


def require_labels(where: str, names: object) -> tuple[str, ...]:
    """Validate action names and strip white space. Raises ConfigError, whose text begins with
    `where`, unless they are a list of distinct strings that a response can contain as actions."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{where} must be a list of strings, got {names!r}")
    labels: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"{where} has {name!r}, which is not a string. YAML reads words such as No, On, "
                "null and 1:30 as other types. Put the name in quotes."
            )
        label = name.strip()
        # `||` separates actions, and tags of the response format have angle brackets.
        marks = ("||", "<", ">", "\n")
        if not label or len(label) > LONGEST_LABEL or any(mark in label for mark in marks):
            raise ConfigError(
                f"{where} has {name[:80]!r}. Use a short name without '||', '<', '>' and line breaks."
            )
        # Labels are matched without regard to case, so the second of two that differ only in case
        # would never be chosen.
        if label.lower() in map(str.lower, labels):
            raise ConfigError(f"{where} has {label!r} twice. Give every action another name.")
        labels.append(label)
    return tuple(labels)


def label_space(size: int) -> spaces.Space[Any]:
    """Return the action space for `size` labels, numbered from 1."""
    return spaces.Discrete(size, start=1)
