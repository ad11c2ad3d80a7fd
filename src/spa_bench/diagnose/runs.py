"""Diagnose why the reward of a run does not rise, from its metrics, settings and gate."""

from collections.abc import Iterator
from pathlib import Path

from spa.run.files import read_object
from spa_bench.diagnose.rules import CHECKS, Finding, Row, failed_gate, ranked, unchecked
from spa_report.reading import RunFolder, StageFolder, flatten, open_run

GATE_FILE = "gate.json"


def reward_lines(folder: Path) -> list[str]:
    """Diagnose each method and seed of a run, as lines. Raises DataError if the folder has no
    run."""
    run = open_run(folder)
    places = dict.fromkeys((stage.arm, stage.seed) for stage in run.stages)
    return [line for arm, seed in places for line in _lines(run, arm, seed)]


def _lines(run: RunFolder, arm: str, seed: int | None) -> Iterator[str]:
    """The lines of one training run: its ranked findings or one sentence, followed by what was not
    checked."""
    stages = {stage.name: stage for stage in run.stages if (stage.arm, stage.seed) == (arm, seed)}
    ppo = stages.get("ppo")
    sft = stages.get("sft")
    name = " ".join(filter(None, (arm, "" if seed is None else f"seed {seed}"))) or run.name
    rows = [] if ppo is None else training_rows(ppo)
    found = findings(ppo, sft)
    steps = f"{len(rows)} PPO step{'' if len(rows) == 1 else 's'}"
    if found:
        yield f"{name}: what holds the reward back in {steps}, causes first"
        yield from (f"  {number}. {finding.text}" for number, finding in enumerate(found, 1))
    elif rows:
        yield f"{name}: nothing holds the reward back: {steps} pass all {len(CHECKS)} rules."
    if not rows:
        yield f"{name}: no PPO step is logged yet, so the reward cannot be judged."
        return
    yield from (f"  {line}" for line in unchecked(rows))


def findings(ppo: StageFolder | None, sft: StageFolder | None) -> list[Finding]:
    """The ranked findings about the stages of one training run."""
    found = [] if ppo is None else ranked(training_rows(ppo), flatten(ppo.config))
    gate = None
    if sft is not None and (settings := flatten(sft.config)).get("gate.enable"):
        gate = failed_gate(read_object(sft.path / GATE_FILE), list(sft.metrics.values()), settings)
    return sorted([*found, *([gate] if gate is not None else [])], key=lambda finding: finding.rank)


def training_rows(ppo: StageFolder) -> list[Row]:
    """The metrics of the PPO steps, without rows that contain only validation metrics."""
    return [row for row in ppo.metrics.values() if any(key.startswith("train/") for key in row)]
