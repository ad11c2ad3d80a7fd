"""The command line. Light on purpose: a command's module is imported only when the command is used."""

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from spa.api import let_waiting_threads_sleep

COMMANDS: dict[str, tuple[str, str]] = {
    "run": (
        "spa.commands.recipe:run",
        "all three stages, or what is missing: run CONFIG [CKPT] [GENERATE_DATA]",
    ),
    "generate": ("spa.commands.recipe:generate", "stage 1: self-play, world-model data"),
    "sft": ("spa.commands.recipe:sft", "stage 2: world-model fine-tuning"),
    "ppo": ("spa.commands.recipe:ppo", "stage 3: multi-turn PPO"),
    "baseline": (
        "spa.commands.recipe:baseline",
        "PPO alone: baseline CONFIG [vanilla|state_estimation]",
    ),
    "compare": (
        "spa.commands.experiments:compare",
        "SPA beside its baselines with the same number of episodes, one table",
    ),
    "try": ("spa.commands.experiments:try_values", "a key with several values, side by side: try CONFIG KEY=a,b"),
    "eval": ("spa.commands.evaluate:main", "Pass@1 and Pass@k of a checkpoint or model: eval CKPT_OR_MODEL CONFIG"),
    "eval-world-model": (
        "spa.commands.eval_world_model:main",
        "accuracy, rollouts and likelihood of a world model",
    ),
    "state-perplexity": ("spa.commands.state_perplexity:main", "how strange states are to a model, in every text"),
    "ablate": (
        "spa.commands.experiments:ablate",
        "the recipe with one thing changed, beside itself: ablate NAME CONFIG",
    ),
    "reproduce": ("spa.commands.experiments:reproduce", "the paper's tables: reproduce TABLE --scale tiny|full"),
    "bench-methods": (
        "spa.commands.bench:main",
        "a leaderboard of methods: bench-methods [METHOD ...] --scale tiny|smol|full",
    ),
    "credit-lab": (
        "spa.commands.credit_lab:main",
        "exact bias and variance of advantage estimators",
    ),
    "diagnose": (
        "spa.commands.diagnose:main",
        "what is wrong with rollouts of any stack: diagnose ROLLOUTS [--model M] [--env ENV] [--html F]",
    ),
    "report": ("spa.commands.report:main", "one self-contained page about one or more runs"),
    "view": ("spa.commands.view:main", "browse the episodes of a run in a local web page"),
    "runs": ("spa.commands.runs:main", "table of the runs in a folder"),
    "envs": ("spa.commands.envs:main", "table of all environments; envs sample TAG prints puzzles"),
    "play": ("spa.commands.play:main", "play an environment yourself, seeing what a model would see"),
    "prompt": ("spa.commands.prompt:main", "what a model is told: prompt TAG [CONFIG] [--tokens]"),
    "serve": ("spa.commands.serve:main", "let OpenEnv clients play an environment: serve TAG [--config C]"),
    "shop": ("spa.commands.shop:main", "browse the WebShop environment in a local web page"),
    "new-env": ("spa.commands.new_env:main", "write the skeleton of an environment of your own"),
    "check-env": ("spa.commands.check_env:main", "check an environment of your own"),
    "filter": ("spa.commands.filter:main", "filter existing world-model data by its tags"),
    "push": ("spa.commands.share:push", "share a data set or a checkpoint on the Hugging Face Hub"),
    "pull": ("spa.commands.share:pull", "fetch a data set or a model from the Hugging Face Hub"),
    "import-gguf": ("spa.commands.import_gguf:main", "a GGUF file as a model folder: import-gguf FILE DIR, or smollm2"),
    "config": ("spa.commands.config:main", "show a configuration with everything resolved"),
    "doctor": ("spa.commands.doctor:main", "what is installed, what is missing, what will be used"),
    "pretrain-tiny": ("spa.commands.recipe:pretrain_tiny", "make the built-in base model again"),
}


KEEP_NOTHING = (
    "check-env", "credit-lab", "diagnose", "doctor", "envs", "eval-world-model", "play", "pretrain-tiny", "prompt",
    "report", "runs", "serve", "shop", "state-perplexity", "view",
)  # fmt: skip
"""Commands that begin anew every time: whoever stops them has nothing to go on from."""

TRAINING = ("ablate", "baseline", "bench-methods", "compare", "generate", "ppo", "reproduce", "run", "sft", "try")
"""Commands that begin anew if `trainer.resume_mode` is `disable`."""

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors that a full, broken or read-only disk makes."""

NO_PLACE = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of names that cannot be a file or folder, or are something else already."""


def usage() -> str:
    """The text of `spa --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: spa COMMAND [arguments] [key=value ...]",
            "",
            "Agents that learn how their world works before they learn to win in it.",
            "",
            *lines,
            "",
            "`spa COMMAND --help` explains a command. Arguments with = override the configuration.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 2 the user can solve it, 130 interrupted, 143 terminated."""
    let_waiting_threads_sleep()
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage() + "\n")
        return 0
    if args[0] == "--version":
        from spa import __version__

        sys.stdout.write(f"spa {__version__}\n")
        return 0
    if args[0] not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        hint = f" Did you mean `spa {near[0]}`?" if near else ""
        sys.stderr.write(f"spa: there is no command {args[0]!r}.{hint} `spa --help` lists them all.\n")
        return 2
    module, _, function = COMMANDS[args[0]][0].partition(":")
    from spa.errors import EnvFault, SpaError
    from spa.run.console import is_debug, printable, verbosity_from
    from spa.run.signals import stoppable

    try:
        verbosity_from(os.environ)
        with stoppable():
            status = getattr(importlib.import_module(module), function)(args[1:])
            sys.stdout.flush()
            return status
    except (SpaError, EnvFault) as error:
        trace = traceback.format_exc() if is_debug() else ""
        sys.stderr.write(printable(f"{trace}spa {args[0]}: {error}\n"))
        return 2
    except SystemExit as stop:
        if _is_ours(stop):
            raise
        sys.stderr.write(f"spa {args[0]}: code that is not spa's called sys.exit({stop.code!r}): not finished.\n")
        return 2
    except KeyboardInterrupt as stop:
        return _stopped(stop, args)
    except BrokenPipeError:
        return 0
    except OSError as error:
        in_the_way = error.errno in NO_PLACE and error.filename is not None
        if error.errno not in DISK and not in_the_way:
            raise
        way_out = "Move away what is there" if in_the_way else "Make room, fix the permissions"
        trace = traceback.format_exc() if is_debug() else ""
        told = (
            f"{error}. {way_out} or choose another place, then start the same command again: what is complete is kept."
        )
        sys.stderr.write(printable(f"{trace}spa {args[0]}: {told}\n"))
        return 2


def _is_ours(stop: SystemExit) -> bool:
    """Whether it comes from reading the arguments (`--help`, a wrong one): no other code of ours leaves that way."""
    return any(os.path.basename(frame.filename) == "argparse.py" for frame in traceback.extract_tb(stop.__traceback__))


def _stopped(stop: KeyboardInterrupt, args: Sequence[str]) -> int:
    """Say what was saved and how to go on; return 128 + the signal's number, as shells do: 143 after SIGTERM.

    Job schedulers take status 0 for a finished run."""
    import shlex
    import signal

    from spa.run.signals import StopRequested

    name, saved = (stop.name, stop.saved) if isinstance(stop, StopRequested) else ("SIGINT", "")
    lines = [f"stopped by {name}." + (f" Saved: {saved}." if saved else "")]
    if args[0] not in KEEP_NOTHING:
        again = going_on(args)
        how = "run the same command again" if again == list(args) else "run this, which begins nothing anew"
        lines.append(f"To go on from there, {how}:\n  {shlex.join(['spa', *again])}")
    sys.stderr.write("\n" + " ".join(lines) + "\n")
    return 128 + signal.Signals[name]


def going_on(args: Sequence[str]) -> list[str]:
    """A command without what makes it begin anew: it would archive what was just saved."""
    from spa.commands.arguments import is_override

    positional = [number for number, arg in enumerate(args) if not is_override(arg) and not arg.startswith("--")]
    anew = [number for number in positional[3:4] if args[0] == "run" and args[number].lower() == "true"]
    again = [arg for number, arg in enumerate(args) if number not in anew]
    if args[0] not in TRAINING or not _resume_is_disabled([args[number] for number in positional[1:]], args):
        return again
    mode = "trainer.resume_mode"
    return [*(arg for arg in again if arg.partition("=")[0].lstrip("+") != mode), f"{mode}=auto"]


def _resume_is_disabled(words: Sequence[str], args: Sequence[str]) -> bool:
    """Whether the overrides, or the configuration among the words, say that nothing is gone on with."""
    from spa.config.load import load_config
    from spa.errors import SpaError

    overrides = [arg for arg in args if "resume_mode" in arg]  # others may be values of `spa try`
    for name in (*words, "base"):
        try:
            if load_config(name, overrides, stages=()).trainer.resume_mode == "disable":
                return True
        except SpaError:
            continue  # no configuration
    return False


if __name__ == "__main__":
    raise SystemExit(main())
