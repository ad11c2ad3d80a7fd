"""Do the commands notice what the schema says? Settings drawn at random are changed under finished work.

    python benchmarks/identity.py [FOLDER] [--draws 60] [--seed 0] [--commands run,compare,try,ablate,reproduce]

Each command is run once on a very short `tiny` in FOLDER. Then each drawn setting is changed and the command given
again: where the schema says `result`, it must be refused with the key's name; otherwise the finished work must be
reused, and what only rounds differently said. Either way no file may change but the page and the table of `reproduce`,
which are written anew each time. Prints one line per draw and the counts.
"""

import argparse
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from spa import cli
from spa.config.fields import Key, flatten
from spa.config.load import load_config
from spa.config.schema import Config, schema_keys, to_plain
from spa.config.stages import stages_of, values_of
from spa.errors import ConfigError
from spa.models.precision import precision_of, with_precision
from spa.run import manifest
from spa.seeds import stream

SHORT = (
    "trainer.total_training_steps=1", "sft.trainer.total_training_steps=2", "sft.trainer.test_freq=2",
    "sft.trainer.eval_episodes=4", "generate.num_batches=1", "es_manager.train.env_groups=4",
    "es_manager.val.env_groups=2", "actor_rollout_ref.actor.ppo_num_mini_batches=1",
)  # fmt: skip
TAG = "FrozenLakeNoSlip"
TRIED = "actor_rollout_ref.actor.optim.lr"


def other(kind: Any, key: Key, value: Any) -> Any:
    """A value of the same type inside its range that is not `value`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return other(next(arg for arg in args if arg is not NoneType), key, value)
    if origin is Literal:
        return next(arg for arg in args if arg not in (value, "auto"))  # auto may come to the same
    if origin is tuple:
        return [other(args[0], key, item) for item in value or ["x"]]
    if origin is Mapping:
        return {**(value or {}), "another": 1}
    if kind is bool:
        return not value
    if kind in (int, float):
        steps = (1, -1) if kind is int else (0.125, -0.125, 0.01)
        return next(item for step in steps if not key.problem(item := kind((value or 0) + step)))
    return f"{value}x"


def files(folder: Path) -> dict[str, str]:
    """The checksums of all files that say what was done."""
    written = (".lock", "results.json", "results.md")
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in written)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def commands(folder: Path) -> dict[str, list[str]]:
    """The command lines, all on one run; `reproduce` has a folder of its own."""
    tiny = ["tiny", *SHORT, f"trainer.run_dir={folder / 'tiny'}"]
    table = [
        "dynamics",
        "--only",
        "builtin:tiny/FrozenLake/spa",
        "--seeds",
        "1",
        "--root",
        str(folder / "reproduce"),
    ]
    return {
        "run": ["run", *tiny],
        "compare": ["compare", *tiny, "compare.parallel=1"],
        "try": ["try", *tiny, f"{TRIED}=3e-4,1e-4", "--parallel", "1"],
        "ablate": ["ablate", "predicted_states", *tiny, "--parallel", "1"],
        "reproduce": ["reproduce", *table, *SHORT, "--parallel", "1"],
    }


def given(words: Sequence[str]) -> tuple[int, str]:
    """Exit status of a command, and what it said."""
    manifest._warn_once.cache_clear()  # each command stands for a process of its own
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = cli.main([*words, "--quiet"])
    return status, said.getvalue()


def definite(cfg: Config) -> Config:
    """With the precision that a run has for `auto`."""
    return with_precision(cfg, precision_of(cfg))


def try_setting(words: Sequence[str], name: str, kind: Any, key: Key) -> str:
    """Classify one changed setting: `refused`, `reused`, `impossible`, or the error."""
    overrides = [word for word in words if "=" in word and not word.startswith(TRIED)]
    before = definite(load_config("tiny", overrides))
    path = name.replace("custom_envs.*", f"custom_envs.{TAG}")
    change = f"{path}={json.dumps(other(kind, key, flatten(to_plain(before)).get(path)))}"
    try:
        cfg = definite(load_config("tiny", [*overrides, change]))
    except ConfigError:
        return "impossible"  # with the other settings of this run
    stages = [
        each
        for each in ("selfplay", "sft", "ppo")
        if values_of(before, each) != values_of(cfg, each)
    ]
    expected = "refused" if key.affects == "result" and stages else "reused"
    status, said = given([*words, change])
    outcome = "refused" if status == 2 else "reused" if status == 0 else f"status {status}"
    if path not in said:
        if outcome == "refused":
            outcome = f"refused without its name: {said}"
        elif key.affects == "rounding" and stages:
            outcome = "reused, and not said"
    return outcome if outcome == expected else f"WRONG: {outcome}, expected {expected}"


def main() -> int:
    """Train, draw, count; 1 if anything is not as the schema says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", default="runs/identity")
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default="run,compare,try,ablate,reproduce")
    options = parser.parse_args()
    folder, lines = Path(options.folder).absolute(), commands(Path(options.folder).absolute())
    chosen, counts = options.commands.split(","), Counter[str]()
    for command in dict.fromkeys(["run", *chosen]):
        status, said = given(lines[command])
        if status != 0:
            sys.stdout.write(f"{command}: {said}\n")
            return 1
    places = (
        "run_dir",
        "default_local_dir",
        "output_dir",
        "default_hdfs_dir",
        "resume_path",
        "resume_from_path",
    )
    keys = [
        (name, kind, key)
        for name, kind, key in schema_keys()
        if key is not None and not is_dataclass(kind) and key.content == "value"
        if stages_of(name) and stages_of(name) != ("eval",) and not name.startswith(("model_info", "custom_envs"))
        and not name.endswith((*places, "resume_mode", "launcher", "device"))
        # what was measured is judged by those of now
        and not (name.startswith("gate.") and name.endswith("_min"))
        # longer, or stopped, as asked
        and name not in ("trainer.total_training_steps", "gate.on_failure", TRIED)
    ]  # fmt: skip
    before = files(folder)
    for command in chosen:
        order = stream(options.seed, f"identity draws of {command}").permutation(len(keys))
        for index in order[: options.draws].tolist():
            name, kind, key = keys[index]
            outcome = try_setting(lines[command], name, kind, key)
            if files(folder) != before:
                outcome, before = f"WRONG: files were changed ({outcome})", files(folder)
            counts[f"{command}: {key.affects}: {outcome.partition(':')[0]}"] += 1
            sys.stdout.write(f"{command}: {name} ({key.affects}): {outcome}\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    return int(any("WRONG" in outcome for outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
