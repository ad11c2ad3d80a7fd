"""Play an environment by hand, with the prompts that a model would get."""

from collections.abc import Callable
from dataclasses import dataclass

from spa.envs.base import TextEnv, look_as_mover
from spa.prompts.render import Prompter, format_reward
from spa.types import IMAGE

Read = Callable[[str], str | None]
"""Function that shows a prompt and returns a line, or None at the end of the input."""

HELP = (
    ":hint shows the best next action, :new starts the next puzzle, :prompt shows the first "
    "prompt again, :quit ends the game. Separate several actions by ||, or by spaces if "
    "actions are words. You may shorten a word."
)
KEYS = {"w": "up", "a": "left", "s": "down", "d": "right"}


@dataclass
class Score:
    """Totals over all puzzles that a player has played."""

    puzzles: int = 0
    solved: int = 0
    actions: int = 0
    reward: float = 0.0


def play(
    env: TextEnv,
    prompter: Prompter,
    *,
    seed: int,
    hint: bool,
    read: Read,
    write: Callable[[str], None],
) -> Score:
    """Play puzzles, starting with the one of `seed`, until the input ends. Returns the score.

    `prompter` provides the limits and the prompt. With `hint`, the best next action is shown in
    every state.
    """
    score = Score()
    while True:
        env.reset(seed=seed)
        look_as_mover(env)
        score.puzzles += 1
        first = _prompt(env, prompter)
        write(f"puzzle {seed}\n{first}\n{HELP}\n")
        if not _puzzle(env, prompter, score, first=first, hint=hint, read=read, write=write):
            solved = f"{score.solved} of {score.puzzles} solved"
            write(f"{solved}, {score.actions} actions, {format_reward(score.reward)} points")
            return score
        seed += 1


def _puzzle(
    env: TextEnv,
    prompter: Prompter,
    score: Score,
    *,
    first: str,
    hint: bool,
    read: Read,
    write: Callable[[str], None],
) -> bool:
    """Play one puzzle within the action limit of a model. `first` is the puzzle's first prompt.
    Returns False if the player wants to stop."""
    left = min(prompter.max_actions_per_traj, prompter.max_turn * prompter.max_actions_per_turn)
    while left > 0:
        if hint:
            write(f"hint: {best(env, left)}")
        line = read(f"{left} actions left> ")
        if line is None or line.strip() == ":quit":
            return False
        if line.strip() == ":new":
            return True
        if line.strip().startswith(":"):
            write(_answer(env, first, line.strip(), left))
            continue
        before = score.actions
        # As in a model's turn, actions beyond the limit are dropped.
        ended = _act(
            env, line, min(left, prompter.max_actions_per_turn), prompter.action_sep, score, write
        )
        left -= score.actions - before
        if ended:
            return True
    write("No actions left.")
    return True


def _answer(env: TextEnv, first: str, command: str, left: int) -> str:
    if command == ":hint":
        return best(env, left)
    return first if command == ":prompt" else HELP


def _prompt(env: TextEnv, prompter: Prompter) -> str:
    """Return the first prompt. If it shows the state as an image, the state is added as text,
    because a terminal cannot show images."""
    text = prompter.first_messages(env)[1]["content"]
    return (
        text
        if env.image() is None
        else f"{text}\n\n{IMAGE} is\n{env.state_text(prompter.state_text)}"
    )


def _act(
    env: TextEnv, line: str, left: int, separator: str, score: Score, write: Callable[[str], None]
) -> bool:
    """Execute at most `left` actions of a line, and write the result of each. Returns True if the
    episode has ended."""
    for text in read_actions(env, line, separator)[:left]:
        action = env.to_action(text)
        if action is None:
            write(f"{text!r} is not an action. {_offer(env)}")
            return False
        state, reward, terminated, truncated, info = env.step(action)
        if env.players > 1 and not (terminated or truncated):
            look_as_mover(env)
            state = env.state_text(env.default_state_text)
        score.actions, score.reward = score.actions + 1, score.reward + float(reward)
        note = (
            ""
            if info["action_is_effective"]
            else " (nothing changed)"
            if info["action_is_valid"]
            else " (not allowed)"
        )
        write(f"{text}{note}, reward {format_reward(float(reward))}\n{state}")
        if terminated or truncated:
            score.solved += bool(info["success"])
            write("Solved.\n" if info["success"] else "Lost.\n")
            return True
    return False


def best(env: TextEnv, left: int) -> str:
    """Return the best next action, or the reason why there is none."""
    actions = env.expert_actions(left)
    if actions:
        return actions[0]
    return "none, because the environment has no solver, or it finds no way to the goal"


def read_actions(env: TextEnv, line: str, separator: str) -> list[str]:
    """Split a line into actions. Shortened action names and the keys w, a, s and d are completed;
    unknown words are kept."""
    names = env.action_names()
    parts = [part.strip() for part in line.split(separator) if part.strip()]
    # If none of the parts is an action (`up up left` without separators), their words may be
    # actions.
    if names and all(env.to_action(part) is None for part in parts):
        parts = [word for part in parts for word in part.split()]
    return [_complete(part, names) for part in parts]


def _complete(text: str, names: tuple[str, ...]) -> str:
    lower = text.lower()
    if lower in (name.lower() for name in names):
        return text
    # The keys w, a, s and d take precedence. Otherwise exactly one name must begin with the text.
    fitting = [name for name in names if name.lower() == KEYS.get(lower)]
    fitting = fitting or [name for name in names if name.lower().startswith(lower)]
    return fitting[0] if len(fitting) == 1 else text


def _offer(env: TextEnv) -> str:
    names = env.action_names()
    return (
        f"Actions: {', '.join(names)}."
        if names
        else "Enter :prompt to read the first prompt, which explains the actions."
    )
