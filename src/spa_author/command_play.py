"""`spa env play`: play an environment in the terminal."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from spa.commands.arguments import add_environment, whole_number
from spa.errors import ConfigError
from spa.run.console import write_out

# Characters that a terminal sends after ESC for an arrow key -> action.
ARROWS = {"[A": "up", "[B": "down", "[C": "right", "[D": "left"}


def play_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env play`."""
    add_environment(
        parser,
        "configuration that defines the environment tags and the limits of actions and turns "
        "(default: base)",
    )
    parser.add_argument(
        "--seed", type=whole_number, default=10, metavar="N", help="seed of the first puzzle"
    )
    parser.add_argument(
        "--hint", action="store_true", help="show the best next action in every state"
    )
    parser.add_argument(
        "--state-text",
        choices=["grid", "coords", "grid_and_coords"],
        help="state rendering (default: state_text of the configuration)",
    )
    parser.add_argument(
        "--mode",
        choices=["base", "add_worldmodel"],
        help="prompt format (default: ctx_manager.mode of the configuration)",
    )
    parser.add_argument(
        "--lines", action="store_true", help="read whole lines instead of single keys"
    )


def play(options: argparse.Namespace) -> int:
    """Play puzzles until the input ends, and return the exit status. Raises ConfigError if the
    environment or the configuration is unknown."""
    from spa.api.environments import find_spec
    from spa.config.load import load_config
    from spa.envs.registry import make_env
    from spa.recipes.prompters import make_prompter
    from spa_author.terminal import play as play_game

    config = load_config(options.config)
    spec = find_spec(options.tag, config)
    env = make_env(spec.env_type, spec.env_config)
    if options.state_text is not None:
        config = replace(config, state_text=options.state_text)
    prompter = make_prompter(config, spec, options.mode or config.ctx_manager.mode)
    env.default_state_text = prompter.state_text
    named = {name.lower() for name in env.action_names()}
    # Single keys are enough only if all actions are moves in four directions. Other actions have to
    # be typed as lines.
    if (
        sys.stdin.isatty()
        and not options.lines
        and named <= {"up", "down", "left", "right"}
        and named
    ):
        write_out(
            "The arrow keys or w, a, s, d move. h shows a hint, n starts the next puzzle, and q quits.\n"
        )
        with _single_keys():
            play_game(
                env, prompter, seed=options.seed, hint=options.hint, read=_read_key, write=_write
            )
    else:
        play_game(
            env, prompter, seed=options.seed, hint=options.hint, read=_read_line, write=_write
        )
    return 0


def _write(text: str) -> None:
    write_out(text + "\n")
    sys.stdout.flush()


def _read_line(prompt: str) -> str | None:
    write_out(prompt)
    sys.stdout.flush()
    # An empty string means the end of the input. An empty line is read as "\n".
    return sys.stdin.readline() or None


def _read_key(prompt: str) -> str | None:
    """Read one key, and return the equivalent input line, or None to quit."""
    write_out(prompt)
    sys.stdout.flush()
    key = sys.stdin.read(1)
    if not key:
        return None
    # An arrow key sends three characters: ESC and two more, which are already in the buffer.
    if key == "\x1b":
        key = ARROWS.get(sys.stdin.read(2), ":help")
    write_out("\n")
    # \x04 is Ctrl+D, which does not end the input while the terminal passes single keys.
    return {"q": None, "\x04": None, "h": ":hint", "n": ":new", "?": ":help"}.get(key, key)


@contextmanager
def _single_keys() -> Iterator[None]:
    """Disable the terminal's line buffering within the block, and restore it at the end."""
    try:
        import termios
        import tty
    except ModuleNotFoundError as error:
        raise ConfigError(
            "single keys need a Unix terminal; add --lines to type whole lines"
        ) from error
    before = termios.tcgetattr(sys.stdin)
    try:
        # cbreak, not raw: Ctrl+C still interrupts. TCSADRAIN keeps input that was typed ahead.
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
