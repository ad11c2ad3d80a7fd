"""Diagnose why the reward of a run does not rise, from its metrics, settings and gate."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from spa.config.load import load_config
from spa.errors import SpaError
from spa.recipes import setup
from spa.recipes.evaluate_puzzles import solvable
from spa.run.files import read_object
from spa_bench.diagnose.rules import (
    CHECKS,
    FEW_ACTIONS,
    Finding,
    Row,
    column,
    failed_gate,
    ranked,
    solvable_puzzles,
    too_few_actions,
    unchecked,
)
from spa_report.reading import RunFolder, StageFolder, flatten, open_run

GATE_FILE = "gate.json"
PUZZLES = 32
"""Number of validation puzzles on which the optimal policy is measured."""


def reward_lines(folder: Path) -> list[str]:
    """Diagnose each method and seed of a run, as lines of text. Raises DataError if the folder has
    no run."""
    run = open_run(folder)
    places = dict.fromkeys((stage.arm, stage.seed) for stage in run.stages)
    return [line for arm, seed in places for line in _lines(run, arm, seed)]


def _lines(run: RunFolder, arm: str, seed: int | None) -> Iterator[str]:
    """The lines about one training run: its ranked findings or a sentence without findings,
    followed by the rules that could not be checked."""
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
        checked = sum(bool(column(rows, check.needs)) for check in CHECKS)
        if checked == len(CHECKS):
            yield f"{name}: nothing holds the reward back: {steps} pass all {checked} rules."
        else:
            yield f"{name}: {checked} of {len(CHECKS)} rules were checked on {steps}, and find nothing."
    if not rows:
        yield f"{name}: no PPO step is logged yet, so the reward cannot be judged."
        return
    yield from (f"  {line}" for line in unchecked(rows))


def findings(ppo: StageFolder | None, sft: StageFolder | None) -> list[Finding]:
    """The ranked findings about the stages of one training run."""
    found: list[Finding] = []
    if ppo is not None:
        rows, settings = training_rows(ppo), flatten(ppo.config)
        found = ranked(rows, settings)
        measured = solvable_within_limit(ppo)
        # Where the optimal policy is known, its finding replaces the one that is based on episodes.
        if measured:
            found = [finding for finding in found if finding.title != FEW_ACTIONS]
            known = {tag for tag, *_ in measured}
            found += filter(None, [too_few_actions(rows, settings, without=known)])
        found += filter(None, (solvable_puzzles(rows, settings, *each) for each in measured))
    gate = None
    if sft is not None and (settings := flatten(sft.config)).get("gate.enable"):
        gate = failed_gate(read_object(sft.path / GATE_FILE), list(sft.metrics.values()), settings)
    return sorted([*found, *([gate] if gate is not None else [])], key=lambda finding: finding.rank)


def training_rows(ppo: StageFolder) -> list[Row]:
    """The metrics of the PPO steps. Rows with only validation metrics are omitted."""
    return [row for row in ppo.metrics.values() if any(key.startswith("train/") for key in row)]


def solvable_within_limit(ppo: StageFolder) -> list[tuple[str, int, float, float]]:
    """Measure the optimal policy of each tag on validation puzzles.

    Returns the tag, the allowed number of actions, and the success rates within that number and
    within four times that number. Tags without a known optimal policy are omitted, and so are games
    that cannot be created here.
    """
    try:
        cfg = load_config(ppo.path)
        worker = setup.make_worker(cfg, None, mode=cfg.ctx_manager.mode)
        specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
        looks = [
            (spec.tag, worker.peek_reset(spec))
            for spec in [each for each in specs if each.member == 0][:PUZZLES]
        ]
    except SpaError:
        return []
    measured = list[tuple[str, int, float, float]]()
    for tag in dict.fromkeys(tag for tag, _ in looks):
        allowed = cfg.most_actions(tag)
        envs = [look.env for each, look in looks if each == tag and look is not None]
        pairs = [(solvable(env, allowed), solvable(env, 4 * allowed)) for env in envs]
        known: list[Any] = [pair for pair in pairs if None not in pair]
        if known:
            within, ample = (fmean(column) for column in zip(*known, strict=True))
            measured.append((tag, allowed, within, ample))
    return measured
