"""Does a run notice what the schema says that it should? Settings drawn at random are changed under a finished run.

    python benchmarks/identity_draws.py [FOLDER] [--draws 60] [--seed 0]

A very short `demo` is trained once in FOLDER. Then each drawn setting is changed and the run started again: where the
schema says `result`, it must be refused with the key's name; otherwise the finished work must be reused, and what only
rounds differently said. Either way no file of the run may change. Prints one line per draw and the counts.
"""

import argparse
import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from spa.config.convert import flatten, schema_keys, to_plain
from spa.config.key import Key
from spa.config.load import load_config
from spa.config.stages import stages_of, values_of
from spa.errors import ConfigError
from spa.recipes import pipeline, stage
from spa.seeds import stream

SHORT = (
    "trainer.total_training_steps=1", "sft.trainer.total_training_steps=2", "sft.trainer.test_freq=2",
    "sft.trainer.eval_episodes=4", "generate.num_batches=1", "es_manager.train.env_groups=4",
    "es_manager.val.env_groups=2", "gate.max_extra_rounds=0", "actor_rollout_ref.actor.ppo_num_mini_batches=1",
)  # fmt: skip
TAG = "FrozenLakeNoSlip"


def other(kind: Any, key: Key, value: Any) -> Any:
    """A value of the same type inside its range that is not `value`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return other(next(arg for arg in args if arg is not NoneType), key, value)
    if origin is Literal:
        return next(arg for arg in args if arg != value)
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
    """The checksums of a run's files; its lock aside."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


class Said(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        self.lines.append(record.getMessage())


def draw(name: str, kind: Any, key: Key, run: list[str], said: Said) -> str:
    """What became of one changed setting: `refused`, `reused`, `impossible`, or what went wrong."""
    before = load_config("demo", run)
    path = name.replace("custom_envs.*", f"custom_envs.{TAG}")
    value = json.dumps(other(kind, key, flatten(to_plain(before)).get(path)))
    try:
        cfg = load_config("demo", [*run, f"{path}={value}"])
    except ConfigError:
        return "impossible"  # with the other settings of this run
    stages = [stage for stage in ("selfplay", "sft", "ppo") if values_of(before, stage) != values_of(cfg, stage)]
    expected = "refused" if key.affects == "result" and stages else "reused"
    said.lines.clear()
    stage._say.cache_clear()  # each draw stands for a process of its own
    try:
        pipeline.run(cfg)
        found = "reused"
        if key.affects == "rounding" and stages and not any(path in line for line in said.lines):
            found = "reused, and not said"
    except ConfigError as error:
        found = "refused" if path in str(error) else f"refused without its name: {error}"
    return found if found == expected else f"WRONG: {found}, expected {expected}"


def main() -> int:
    """Train, draw, count; 1 if anything is not as the schema says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="runs/identity_draws")
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run = [*SHORT, f"trainer.run_dir={options.folder}"]
    said = Said()
    logging.getLogger("spa").addHandler(said)
    pipeline.run(load_config("demo", run))
    places = ("run_dir", "default_local_dir", "output_dir", "default_hdfs_dir", "resume_path", "resume_from_path")
    keys = [
        (name, kind, key)
        for name, kind, key in schema_keys()
        if key is not None and not is_dataclass(kind) and key.content == "value"
        if stages_of(name) and stages_of(name) != ("eval",) and not name.startswith(("model_info", "custom_envs"))
        and not name.endswith((*places, "resume_mode", "launcher", "device"))
        and name not in ("trainer.total_training_steps", "gate.on_failure")  # make a run longer, or stop it, as asked
    ]  # fmt: skip
    chosen = stream(options.seed, "identity draws").permutation(len(keys))[: options.draws].tolist()
    before, counts = files(Path(options.folder)), Counter[str]()
    for index in chosen:
        name, kind, key = keys[index]
        outcome = draw(name, kind, key, run, said)
        if files(Path(options.folder)) != before:
            outcome = "WRONG: files were changed"
        counts[f"{key.affects}: {outcome.partition(':')[0]}"] += 1
        sys.stdout.write(f"{name} ({key.affects}): {outcome}\n")
        if outcome == "WRONG: files were changed":
            return 1
    sys.stdout.write(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    return int(any("WRONG" in outcome for outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
