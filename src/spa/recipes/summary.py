"""From the files of a comparison to one summary and one table."""

import json
import platform
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from spa.config.schema import Config
from spa.evaluate.passk import pass_at_k
from spa.evaluate.statistics import paired_difference
from spa.recipes.arms import PLANS
from spa.recipes.compare import extra_steps, seed_directory
from spa.tracking.encoding import read_lines

PACKAGES = ("spa", "torch", "transformers", "numpy", "gymnasium", "tokenizers")
Puzzles = dict[str, tuple[int, int]]
"""Puzzle -> (attempts, successes)."""


def summarise(cfg: Config, root: Path, *, seconds: float, peak_bytes: int) -> dict[str, Any]:
    """The content of summary.json. With one seed, `methods` stands at the top; with several, in `seeds`, and at the top
    is the mean over seeds."""
    arms = list(cfg.compare.arms)
    outcomes = [
        {arm: arm_outcomes(cfg, seed_directory(cfg, root, index) / arm / "ppo") for arm in arms}
        for index in range(cfg.compare.seeds)
    ]
    seeds = [
        {"seed": index, "methods": {arm: rates(found[arm]) for arm in arms}, **world_model(cfg, root, index)}
        for index, found in enumerate(outcomes)
    ]
    steps = cfg.trainer.total_training_steps
    per_step = cfg.es_manager.train.env_groups * cfg.es_manager.train.group_size
    summary: dict[str, Any] = {
        "name": cfg.trainer.experiment_name,
        "seed": cfg.seed.train,
        "methods": mean_over_seeds([entry["methods"] for entry in seeds]),
        "world_model": mean_over_seeds([entry["world_model"] for entry in seeds]),
        "difference": differences(cfg, outcomes),
        "episodes": {
            arm: {
                "ppo": steps * per_step,
                "self_play": extra_steps(cfg) * per_step if PLANS[arm].fine_tuned else 0,
            }
            for arm in arms
        },
        "seconds": {**stage_seconds(cfg, root), "total": round(seconds, 1)},
        "peak_memory_gb": round(peak_bytes / 2**30, 2),
        "versions": versions(),
    }
    if cfg.compare.seeds > 1:
        summary["seeds"] = seeds
    return summary


def arm_outcomes(cfg: Config, ppo: Path) -> dict[str, Puzzles]:
    """Per-puzzle results of an arm: `before`, `after` the common number of PPO episodes, and, for arms without
    self-play, `after_total` (as many episodes in all as SPA)."""
    steps = cfg.trainer.total_training_steps
    times = {"before": 0, "after": steps, "after_total": steps + extra_steps(cfg)}
    found = {}
    for name, step in times.items():
        path = ppo / "trajectories" / f"val-{step:06d}.jsonl"
        if path.is_file():
            found[name] = puzzles_of(path)
    return found


def puzzles_of(path: Path) -> Puzzles:
    """Attempts and successes per puzzle in a file of recorded episodes."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _, episode in read_lines(path):
        entry = counts[f"{episode['tag']}/{episode['puzzle_seed']}"]
        entry[0] += 1
        entry[1] += bool(episode["success"])
    return {puzzle: (n, c) for puzzle, (n, c) in sorted(counts.items())}


def rates(found: dict[str, Puzzles]) -> dict[str, dict[str, float]]:
    """Pass@1 and unbiased Pass@8 of each moment."""
    out: dict[str, dict[str, float]] = {}
    for name, puzzles in found.items():
        attempts = np.array([n for n, _ in puzzles.values()])
        successes = np.array([c for _, c in puzzles.values()])
        out[name] = {
            f"pass@{k}": round(float(pass_at_k(attempts, successes, k).mean()), 4)
            for k in (1, 8)
            if attempts.min() >= k
        }
    return out


def differences(cfg: Config, outcomes: list[dict[str, dict[str, Puzzles]]]) -> dict[str, Any]:
    """SPA's Pass@1 minus each other arm's, with a 95 % bootstrap interval: puzzles are paired and resampled inside
    seeds; with three seeds or more, seeds are resampled too."""
    out: dict[str, Any] = {}
    if "spa" not in cfg.compare.arms:
        return out
    for arm in cfg.compare.arms:
        for moment in ("after", "after_total"):
            pairs = [(found["spa"].get("after"), found[arm].get(moment)) for found in outcomes]
            if arm == "spa" or any(ours is None or theirs is None for ours, theirs in pairs):
                continue
            ours = [np.array([c / n for n, c in puzzles.values()]) for puzzles, _ in pairs if puzzles]
            theirs = [np.array([c / n for n, c in puzzles.values()]) for _, puzzles in pairs if puzzles]
            interval = paired_difference(
                ours, theirs, seed=0, resamples=cfg.compare.bootstrap, resample_seeds=len(ours) >= 3
            )
            name = arm if moment == "after" else f"{arm}_same_total_episodes"
            out[name] = {
                "mean": round(interval.mean, 4),
                "low": round(interval.low, 4),
                "high": round(interval.high, 4),
                "n": interval.n,
            }
    return out


def world_model(cfg: Config, root: Path, index: int) -> dict[str, dict[str, float]]:
    """What the gate measured after SFT."""
    path = seed_directory(cfg, root, index) / "spa" / "sft" / "gate.json"
    if not path.is_file():
        return {"world_model": {}}
    gate = json.loads(path.read_text(encoding="utf-8"))
    names = ("observation_exact", "prediction_exact", "entropy", "rounds")
    return {
        "world_model": {name: round(float(gate[name]), 4) for name in names} | {"gate_passed": float(gate["passed"])}
    }


def mean_over_seeds(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of equal trees of numbers."""
    first = entries[0]
    out: dict[str, Any] = {}
    for key, value in first.items():
        others = [entry[key] for entry in entries if key in entry]
        if isinstance(value, dict):
            out[key] = mean_over_seeds(others)
        else:
            out[key] = round(float(np.mean(others)), 4)
    return out


def stage_seconds(cfg: Config, root: Path) -> dict[str, float]:
    """Seconds of each stage of each arm, summed over seeds."""
    out: dict[str, float] = defaultdict(float)
    for index in range(cfg.compare.seeds):
        folder = seed_directory(cfg, root, index)
        for mark in sorted(folder.glob("*/*/done.json")):
            arm, stage = mark.parts[-3], mark.parts[-2]
            out[f"{arm}/{stage}"] += float(json.loads(mark.read_text(encoding="utf-8"))["seconds"])
    return {name: round(value, 1) for name, value in out.items()}


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
