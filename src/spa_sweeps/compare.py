"""`spa compare`: train several methods on the same puzzles, and write one summary.

A comparison trains several methods, or one method with the values of a sweep, from one
configuration. All of them play the same number of PPO episodes. Methods without SFT then continue
until they have played as many episodes in total as SPA. This longer training has its own row in the
results.
"""

import itertools
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spa.config.load import choices
from spa.config.schema import Config, schema_keys, to_yaml
from spa.errors import ConfigError
from spa.examples.source import source_of
from spa.run.files import read_object, write_atomic
from spa.run.manifest import changed_lines, changes
from spa.run.stage import locked
from spa_sweeps.grid import (
    FOLDERS,
    Plan,
    PoolOf,
    TrainingRun,
    Work,
    announce,
    do_task,
    fetch_models,
    own_process,
    peak_bytes,
    plan_grid,
    recorded_digest,
    run_grid,
)
from spa_sweeps.methods import (
    REFERENCE,
    Method,
    configured,
    in_groups_of,
    label,
    method,
    placed,
    warn_untrained,
)
from spa_sweeps.results import summarize

log = logging.getLogger("spa.sweeps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A method of a comparison, with its own settings."""

    name: str
    method: Method
    overrides: tuple[str, ...] = ()
    longer: bool = False  # continue PPO until its total number of episodes equals SPA's


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A planned comparison of methods."""

    cfg: Config
    root: Path  # folder of the comparison
    arms: dict[str, Arm]  # by name
    reference: str  # name of the method with which the others are compared
    trainings: dict[str, list[TrainingRun]]  # by method name, one per seed
    cache_dirs: list[Path]  # folders that may already contain finished stages

    @cached_property
    def grid(self) -> Plan:
        """The stages to run, seed by seed. Within a seed, methods with SFT come first."""
        # Methods with self-play and SFT usually take longest, because their stages run one after
        # the other.
        arms = sorted(self.arms.values(), key=lambda arm: not arm.method.fine_tuned)
        # All methods are trained with one seed before the next seed starts, so that an interrupted
        # comparison has results of every method.
        seeds = range(self.cfg.compare.seeds)
        return plan_grid(
            [self.trainings[arm.name][seed] for seed in seeds for arm in arms], self.cache_dirs
        )


def _check_places(cfg: Config) -> None:
    """Raise ConfigError if the configuration sets stage folders or another launcher than `local`,
    which a comparison does not support."""
    home = cfg.trainer.run_dir
    for key, value, usual in (
        ("generate.output_dir", cfg.generate.output_dir, None),
        ("sft.trainer.default_local_dir", cfg.sft.trainer.default_local_dir, f"{home}/sft"),
        ("trainer.default_local_dir", cfg.trainer.default_local_dir, f"{home}/ppo"),
    ):
        if value != usual:
            raise ConfigError(
                f"{key}={value}: a comparison puts all stages into folders of its own. Remove the setting, or choose "
                "their place with --output-dir."
            )
    if cfg.launcher != "local":
        raise ConfigError(
            f"launcher={cfg.launcher}: a comparison runs each training in a process of this machine. Remove the "
            "setting, or train the methods one by one with `spa run`."
        )


def comparison(
    preset: str,
    overrides: Sequence[str],
    arms: Sequence[Arm],
    *,
    root: Path,
    reference: str,
    seeds: int,
) -> Comparison:
    """Plan the training runs of every method and seed. Finished stages are reused from the run's
    own folder, and from folders next to it whose names begin with `<run>-`.

    Raises ConfigError if the methods do not fit the configuration, or if `seeds` is below 1.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}. Give a number of at least 1.")
    cfg = configured(preset, tuple(overrides))
    if cfg.trainer.also_test_at is not None:
        raise ConfigError(
            "trainer.also_test_at: a comparison chooses this step itself, where methods have had equally many PPO "
            "steps. Remove the setting."
        )
    _check_places(cfg)
    trainings = {
        arm.name: [
            training_of(
                arm.method,
                preset,
                overrides,
                (root / f"seed_{seed}" if seeds > 1 else root) / arm.name,
                arm.name,
                seed=seed,
                root=root,
                more=arm.overrides,
            )
            for seed in range(seeds)
        ]
        for arm in arms
    }
    for arm in arms:
        warn_untrained(arm.name, arm.method, trainings[arm.name][0].ppo)
    # A baseline that is trained longer gets one additional PPO step for each self-play batch of the
    # reference.
    first = trainings[reference][0]
    batches = self_play_batches(first.world_model or first.ppo)
    for arm in arms:
        if arm.longer:
            trainings[arm.name] = [continued(one, batches) for one in trainings[arm.name]]
    home = Path(cfg.trainer.run_dir)
    return Comparison(
        cfg=replace(cfg, compare=replace(cfg.compare, seeds=seeds)),
        root=root,
        arms={arm.name: arm for arm in arms},
        reference=reference,
        trainings=trainings,
        # `runs/demo` also reuses finished stages of `runs/demo-compare-...`.
        cache_dirs=[home, *sorted(home.parent.glob(f"{home.name}-*/"))],
    )


def training_of(
    chosen: Method,
    preset: str,
    overrides: Sequence[str],
    folder: Path,
    name: str,
    *,
    seed: int,
    root: Path,
    more: Sequence[str] = (),
) -> TrainingRun:
    """Return training run number `seed` of a method, with its stages in `folder`. The method's
    changes take precedence over `overrides`, and `more` over both."""
    world_model_changes, ppo_changes = chosen.changes
    if chosen.group_size is not None:
        usual = configured(preset, (*overrides, *ppo_changes, *more), seed)
        ppo_changes = (*ppo_changes, *in_groups_of(usual, chosen.group_size))
    world_model, ppo = (
        placed(configured(preset, (*overrides, *own, *more), seed), folder, name, root=root)
        for own in (world_model_changes, ppo_changes)
    )
    steps = chosen.steps * ppo.trainer.total_training_steps
    ppo = replace(ppo, trainer=replace(ppo.trainer, total_training_steps=steps))
    return TrainingRun(
        folder=folder, world_model=world_model if chosen.fine_tuned else None, ppo=ppo
    )


def self_play_batches(cfg: Config) -> int:
    """Return the number of self-play batches over all rounds. A batch has as many episodes as a
    PPO step."""
    rounds = source_of(cfg).rounds(cfg)
    return sum(own.generate.num_batches for own in rounds if source_of(own).plays)


def continued(training: TrainingRun, batches: int) -> TrainingRun:
    """Extend a training run by `batches` PPO steps, because a PPO step and a self-play batch have
    equally many episodes. Adds a validation at the step where the other methods stop. A
    learning-rate schedule over all PPO steps also covers the additional ones."""
    if batches == 0:
        return training
    trainer = training.ppo.trainer
    steps = trainer.total_training_steps
    # At the last step, methods have equally many episodes in total. At step `also_test_at`, they
    # have equally many PPO steps.
    longer = replace(trainer, total_training_steps=steps + batches, also_test_at=steps)
    return replace(training, ppo=replace(training.ppo, trainer=longer))


def methods_compared(
    preset: str,
    overrides: Sequence[str],
    *,
    names: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: int | None = None,
    root: Path | None = None,
) -> Comparison:
    """Plan `spa compare` for the methods in `compare.arms` and `names`, in the run's own folder.

    `only` names methods that replace those of `compare.arms`. The folder of the comparison is then
    next to the run's. `root` overrides the folder in both cases. Raises ConfigError if two methods
    have the same label.
    """
    cfg = configured(preset, tuple(overrides))
    chosen = (*(only or cfg.compare.arms), *names)
    methods = {name: method(name) for name in dict.fromkeys(chosen)}
    twice = [name for name, count in Counter(map(label, methods)).items() if count > 1]
    if twice:
        raise ConfigError(
            f"two methods are called {twice[0]}, the name of their results. Rename one of them, or compare "
            "them one after the other."
        )
    arms = [
        # A method with a multiple of the steps (`_x11`) is a baseline in its own right, and is not
        # trained longer.
        Arm(name=label(name), method=one, longer=not one.fine_tuned and one.steps == 1)
        for name, one in methods.items()
    ]
    # If spa is not among the methods, the first one is the reference.
    reference = REFERENCE if REFERENCE in methods else arms[0].name
    home = (
        # The name is cut off, because the file system rejects folder names that are too long.
        sibling_folder(cfg, "-".join(["compare", *map(label, only)])[:100])
        if only
        else Path(cfg.trainer.run_dir)
    )
    seeds = cfg.compare.seeds if seeds is None else seeds
    return comparison(preset, overrides, arms, root=root or home, reference=reference, seeds=seeds)


def values_tried(
    preset: str,
    overrides: Sequence[str],
    *,
    name: str = REFERENCE,
    root: Path | None = None,
    seeds: int | None = None,
) -> Comparison:
    """Plan `spa compare --sweep`: train method `name` with every combination of values. The sweep
    varies those keys in `overrides` that have several values. By default, its folder is next to the
    run's own.

    Raises ConfigError if no key has several values, or if two combinations are the same training
    run.
    """
    parsed = [(text, *choices(text)) for text in overrides]
    tried = {key: values for _, key, values in parsed if len(values) > 1}
    # A later value would replace those of the sweep.
    order = [(key, len(values) > 1) for _, key, values in parsed]
    twice = [key for number, (key, _) in enumerate(order) if (key, True) in order[:number]]
    if twice:
        raise ConfigError(
            f"{twice[0]} is given again after its sweep. Give it one --sweep with all values, such as "
            f"--sweep {twice[0]}=A,B,C."
        )
    if not tried:
        raise ConfigError(
            "no key has several values. Give a key several values, for example "
            "--sweep actor_rollout_ref.actor.optim.lr=1e-4,3e-4."
        )
    # Keys with one value are the same in all training runs. Each combination of the other keys gets
    # an arm.
    fixed = [text for text, _, values in parsed if len(values) == 1]
    short = {key: short_name(key) for key in tried}
    arms = []
    for values in itertools.product(*tried.values()):
        pairs = list(zip(tried, values, strict=True))
        # The Python API quotes every string, and names must have no quotes.
        shown = ",".join(short[key] + "=" + value.strip("'\"") for key, value in pairs)
        arms.append(
            Arm(
                # The name is also a folder name, such as `lr=0.0001,seed=1`. Characters other than
                # letters, digits and `_.=,+-` become dashes.
                name=re.sub(r"[^\w.=,+-]", "-", shown),
                method=method(name),
                overrides=tuple(f"{key}={value}" for key, value in pairs),
            )
        )
    cfg = configured(preset, tuple(fixed))
    made_twice = [name for name, count in Counter(arm.name for arm in arms).items() if count > 1]
    if made_twice:
        raise ConfigError(
            f"two combinations of values lead to one folder name, {made_twice[0]}. Write one of the values "
            "differently, or compare them in two sweeps."
        )
    root = root or sibling_folder(cfg, "-".join(["try", *short.values()]))
    seeds = cfg.compare.seeds if seeds is None else seeds
    made = comparison(preset, fixed, arms, root=root, reference=arms[0].name, seeds=seeds)
    ppo = [one.folder / FOLDERS["ppo"] for one, *_ in made.trainings.values()]
    # If the PPO stages of two combinations are linked to the same folder, the two are the same
    # training run.
    if len({made.grid.links.get(folder, folder) for folder in ppo}) < len(arms):
        raise ConfigError(
            f"some values of {', '.join(tried)} lead to identical training runs. Sweep a key that "
            "changes results, not only memory, speed, paths or logging."
        )
    return made


def sibling_folder(cfg: Config, name: str) -> Path:
    """Return the path of a folder next to the run's own, named `<run>-<name>`."""
    home = Path(cfg.trainer.run_dir)
    if home.name in ("", ".."):
        home = home.resolve()
    return home.with_name(f"{home.name}-{name}")


def short_name(key: str) -> str:
    """Return the shortest suffix of a key that identifies it in the configuration."""
    parts = key.split(".")
    known = [name for name, _, _ in schema_keys()]
    # The candidates grow from the last part of the key: `lr`, then `optim.lr`, and so on.
    ends = (".".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))
    return next(
        (end for end in ends if sum(f".{name}".endswith(f".{end}") for name in known) <= 1), key
    )


def changed_selfplay(made: Comparison) -> list[str]:
    """Describe each finished self-play stage in the run's own folder that cannot be reused, with
    the settings that changed."""
    lines = []
    home = made.cache_dirs[0]
    for task in made.grid.missing:
        # A finished stage in the run's own folder would be reused if its fingerprint matched. So a
        # setting or an input file has changed.
        old = home / task.folder.relative_to(made.root)
        if task.stage == "selfplay" and old != task.folder and recorded_digest(old):
            changed = changed_lines(changes(old, task.fingerprint))
            lines.append(
                f"self-play runs again, because {old} was made with other settings: {'; '.join(changed)}"
            )
    return lines


def run_comparison(
    made: Comparison,
    *,
    parallel: int | None = None,
    pool: PoolOf = own_process,
    work: Work = do_task,
) -> dict[str, Any]:
    """Run the missing stages, write summary.json, and return its content. Finished work is kept. An
    unchanged summary is not rewritten."""
    # The lock prevents two comparisons in one folder from overwriting each other's files.
    with locked(made.root):
        started = time.monotonic()
        path = made.root / "summary.json"
        old = read_object(made.root / "summary.json")
        fetch_models(one for trainings in made.trainings.values() for one in trainings)
        # `replace` drops the cached plan, because other processes may have finished stages, and
        # models have been downloaded.
        made = replace(made)
        at_a_time = made.cfg.compare.parallel if parallel is None else parallel
        devices = made.grid.devices(at_a_time)
        for line in announce(made.grid, workers=len(devices)):
            log.info("%s", line)
        for line in changed_selfplay(made):
            log.warning(line)
        peaks = run_grid(made.grid, devices=devices, pool=pool, work=work, root=made.root)
        # If nothing was trained, the time counts as 0. The summary is then unchanged, and no file
        # is written.
        seconds = time.monotonic() - started if peaks else 0.0
        summary = summarize(
            made, seconds=seconds, peak_bytes=sum(peaks.values()) + peak_bytes(), before=old
        )
        if summary != old:
            write_atomic(made.root / "config.yaml", [to_yaml(made.cfg)])
            write_atomic(path, [json.dumps(summary, indent=1, sort_keys=True)])
    return summary
