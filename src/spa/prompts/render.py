"""Render the prompts of a game: the first prompt, the message after every response, and a sample
response.

The layout follows the original's `SPA_agent/ctx_manager.py`, but the wording does not. The first
prompt contains a system line, instruction, legend, actions and a turn block. Later messages contain
the reward and a turn block. Every limit that a prompt states is enforced.

World-model prompts contain a sample response: a few good moves of a real game, the plan in words,
and the resulting state. Models imitate the sample, so it has to show the desired behaviour: moves
with an effect, a changed next state, and no slips.
"""

from dataclasses import dataclass
from typing import Literal

from spa.envs.base import StateText, TextEnv
from spa.errors import ConfigError
from spa.formats.base import ResponseFormat
from spa.formats.registry import format_of
from spa.types import IMAGE, Message, PromptMode

Placeholders = Literal["brackets", "words"]

SYSTEM = "You are a helpful assistant."
STATE = "State:\n"
"""The line before the state in every turn's message."""
_LEGAL = "\nLegal actions: "
_LEFT = "\nActions left: "
_STATE_NOW = "the state as it is now"
_STATE_NEXT = "the state after your actions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    """Renders the messages of one environment tag. It contains only settings; its methods get the
    game as an argument."""

    mode: PromptMode = "base"
    state_text: StateText = "grid_and_coords"
    enable_think: bool = True
    action_sep: str = "||"
    max_turn: int = 5
    max_actions_per_turn: int = 5
    max_actions_per_traj: int = 10
    max_words: int = 100  # length limit that the prompt states, in words
    # text that replaces the environment's own rules (the original's `env_instruction`); None or ""
    # keeps them
    instruction: str | None = None
    example: str = ""  # sample response for the world-model format (`sample_response`); "": none
    show_legal_actions: bool = False  # list the legal actions in every turn, if they can be listed
    placeholders: Placeholders = "brackets"  # write blanks as `[actions]` or as `actions`
    response_format: str = "prediction_first"
    imagined_plans: int = 2  # number of plans that the format "choose_plan" requests
    # True: a turn's prompt contains the earlier turns. False: only the rules and the current state.
    history: bool = True

    @property
    def prefill(self) -> str:
        """Text with which every response is forced to begin."""
        # The prefill makes even a model without fine-tuning begin in the format.
        return "<think>" if self.enable_think or self.mode == "add_worldmodel" else "<answer>"

    def first_messages(
        self, env: TextEnv, *, turn: int = 1, actions_left: int | None = None
    ) -> tuple[Message, ...]:
        """Render the system message and the first user message of a conversation that begins with
        turn `turn`. It can begin after turn 1 only without history. If `actions_left` is None, no
        action of the episode has been taken. Raises ConfigError for images without history."""
        pictured = env.image() is not None
        # Without history, every turn is a separate conversation, but an episode stores its images
        # for a single conversation.
        if pictured and not self.history:
            raise ConfigError(
                "ctx_manager.history=false cannot show states as pictures; set ctx_manager.history=true, or show "
                "text (custom_envs.TAG.env_config.render_mode: text)"
            )
        parts = [self.instruction or env.instruction(self.state_text)]
        legend = env.legend()
        # World-model responses contain the symbols, so they need the legend even with images.
        seen = pictured and self.mode == "base"
        if legend and self.state_text != "coords" and not seen:
            parts.append(
                "Symbols: "
                + ", ".join(f"{symbol} {meaning}" for symbol, meaning in legend.items())
                + "."
            )
        if names := env.action_names():
            parts.append(f"Actions: {', '.join(names)}.")
        parts.append(self._limits())
        if asked := self._format_in_rules(env):
            parts.append(f"Reply only with {asked}")
        if self.example:
            parts.append(f"A sample reply:\n{self.example}")
        left = self.max_actions_per_traj if actions_left is None else actions_left
        text = (
            "\n".join(part for part in parts if part) + "\n\n" + self._turn_block(env, turn, left)
        )
        return ({"role": "system", "content": SYSTEM}, {"role": "user", "content": text})

    def next_message(self, env: TextEnv, *, turn: int, actions_left: int, reward: float) -> Message:
        """Render the user message before turn `turn` (counted from 1), with the last turn's reward
        and the new state."""
        block = self._turn_block(env, turn, actions_left)
        return {"role": "user", "content": f"Reward: {format_reward(reward)}\n\n{block}"}

    def _limits(self) -> str:
        per_turn = f"At most {_count(self.max_actions_per_turn, 'action')} per turn"
        if self.max_actions_per_turn > 1:
            per_turn += f", separated by {self.action_sep}"
        actions = _count(self.max_actions_per_traj, "action")
        turns = _count(self.max_turn, "turn")
        return f"{per_turn}; at most {actions} and {turns} in all."

    def _turn_block(self, env: TextEnv, turn: int, actions_left: int) -> str:
        state = IMAGE if env.image() is not None else env.state_text(self.state_text)
        legal = env.legal_actions() if self.show_legal_actions else ()
        # The list comes after the state, and `shown_state` removes it again.
        if legal:
            state += f"{_LEGAL}{', '.join(legal)}"
        block = f"Turn {turn}:\n{STATE}{state}{_LEFT}{actions_left}."
        # Some formats, such as written searches, state their format once in the rules and have no
        # word limit. They need no reminder.
        if self._format_in_rules(env):
            return block
        return f"{block} Reply only with {self._format()} in at most {self.max_words} words."

    @property
    def form(self) -> ResponseFormat:
        """The format of responses."""
        return format_of(self.response_format)

    def _format_in_rules(self, env: TextEnv) -> str:
        """Return the description of the format that the rules contain, if the response format gives
        it there and not in every turn; otherwise ""."""
        thinks = self.mode == "base" and self.enable_think
        return self.form.asks(env, self._blank) if thinks else ""

    def _format(self) -> str:
        if self.mode == "add_worldmodel":
            return self.form.write(
                self._blank(_STATE_NOW),
                self.form.asked_thoughts(self._blank, self.imagined_plans),
                self._blank(_STATE_NEXT),
                self._blank("actions"),
                on="",
            )
        if self.enable_think:
            return f"<think>{self._blank('your thoughts')}</think><answer>{self._blank('actions')}</answer>"
        return f"<answer>{self._blank('actions')}</answer>"

    def _blank(self, what: str) -> str:
        return what if self.placeholders == "words" else f"[{what}]"


def listed_actions(message: str, state: str) -> str:
    """Return the legal actions that a turn's message lists after its state, as text; "" if it lists
    none."""
    # Search from the end, because the rules at the start of the message may quote a state.
    _, marker, rest = message.rpartition(f"{STATE}{state}{_LEGAL}")
    return rest.partition(_LEFT)[0] if marker else ""


def shown_state(message: str) -> str:
    """Return the state that a message after the first turn shows; "" if the message does not have
    the layout of a turn."""
    # A later message has no rules, so the first marker belongs to its state.
    rest = message.partition(STATE)[2].rpartition(_LEFT)[0]
    state, listed, _ = rest.rpartition(_LEGAL)
    return state if listed else rest


def format_reward(reward: float) -> str:
    """Format a reward with at most four decimals and without trailing zeros."""
    # -0.30000000000000004 becomes -0.3, and -0.00001 becomes 0.
    text = f"{reward:.4f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


SEEDS = range(10)
"""Puzzle seeds that are tried for sample responses. The shipped configurations and `spa.play` use
higher seeds by default, so that samples do not show their puzzles."""
ONE_SHOT = 3
"""From this seed on, `sample_response` accepts a sample that wins with fewer moves than wanted,
because the game may not need more."""
NOISES = range(4)
MOVES = 3
"""Largest number of actions in a sample."""


@dataclass(frozen=True, slots=True)
class Played:
    """A played sample: the state before the actions, the actions, the state after them, and whether
    the game is over."""

    before: str
    actions: tuple[str, ...]
    after: str
    over: bool


def sample_response(env: TextEnv, prompter: Prompter) -> str:
    """Generate a sample response for `prompter` by playing on `env`, a separate instance; "" if
    none is found.

    Plays the environment's `example_actions`. `reset` gets the option `sample`, for which an
    environment may turn off randomness that makes actions fail. Tries puzzle and noise seeds in
    order, and uses the first with which all actions work. From puzzle seed `ONE_SHOT` on, it also
    accepts a shorter sample that ends the game. Otherwise, it uses the sample with the most working
    actions. In a game with few puzzles, it tries no further puzzle once it has a sample.
    """
    wanted = min(MOVES, prompter.max_actions_per_turn)
    best: Played | None = None
    for seed in SEEDS:
        for noise in NOISES:
            env.reset(seed=seed, options={"noise_seed": noise, "sample": True})
            played = play_sample(env, prompter, wanted)
            if played is not None and (best is None or len(played.actions) > len(best.actions)):
                best = played
        if best is not None and (len(best.actions) == wanted or env.finite_puzzles):
            break
        if best is not None and best.over and seed >= ONE_SHOT:
            break
    if best is None:
        return ""
    answer = f" {prompter.action_sep} ".join(best.actions)
    plan = prompter.form.sample_thoughts(best.actions, best.after)
    return prompter.form.write(best.before, plan, best.after, answer)


def play_sample(env: TextEnv, prompter: Prompter, wanted: int) -> Played | None:
    """Play the environment's example actions from its current state, up to the first action without
    an effect. Returns None if no action has an effect, or if an action loses the game or does not
    bring the goal nearer."""
    before = env.world_state_text(prompter.state_text)
    done: list[str] = []
    over = False
    mover = env.current_player()
    for text in env.example_actions()[:wanted]:
        action = env.to_action(text)
        state = env.state_text(prompter.state_text)
        left = env.optimal_steps()
        if action is None:
            return None
        _, _, terminated, truncated, info = env.step(action)
        # An action without effect ends the sample; the actions before it are kept.
        if env.state_text(prompter.state_text) == state:
            break
        done.append(text)
        over = terminated or truncated
        # A losing sample is rejected, except in games with few puzzles, where samples that always
        # win would reveal the answers.
        if over and not info["success"] and not env.finite_puzzles:
            return None
        # The action slipped if it did not bring the goal one step nearer.
        if not over and left is not None and env.optimal_steps() != left - 1:
            return None
        # A response contains the moves of one player.
        if over or env.current_player() != mover:
            break
    after = env.world_state_text(prompter.state_text)
    return Played(before, tuple(done), after, over) if done and after != before else None
