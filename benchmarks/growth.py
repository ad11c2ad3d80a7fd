"""Measure how time and memory grow with the batch, the turns, the length of responses and rows, and
the model.

    python benchmarks/growth.py [--rounds 3] [--output FILE] [--picture FILE]

Every point is a process of its own with one thread: one round to warm up, then the median processor time of `--rounds`,
and the most memory beyond what the process held before. A line through the logarithms gives the exponent: 1 is
proportional, 2 quadratic. Models are random, float32, and shaped like the built-in one.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from bench import ONE_THREAD, machine
from bench_ours import rollout_work, sft_work
from transformers import Qwen2Config, Qwen2ForCausalLM
from workload import Rollout, Rows

from spa.models import attention

VOCABULARY = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement. `turns`, `response`: of rollouts; `length`: of rows; `width`: the hidden size of four layers."""

    work: str  # rollout or sft
    batch: int = 32
    turns: int = 2
    response: int = 40
    length: int = 300
    width: int = 128


CURVES = {
    "rollout by episodes": ("batch", [Point(work="rollout", batch=n) for n in (16, 32, 64, 128, 256)]),
    "rollout by turns": ("turns", [Point(work="rollout", turns=n) for n in (1, 2, 4, 8)]),
    "rollout by length of replies": ("response", [Point(work="rollout", response=n) for n in (20, 40, 80, 160)]),
    "fine-tuning by rows": ("batch", [Point(work="sft", batch=n) for n in (8, 16, 32, 64)]),
    "fine-tuning by length of rows": ("length", [Point(work="sft", length=n) for n in (100, 200, 400, 800)]),
    "fine-tuning by width": ("width", [Point(work="sft", batch=16, width=n) for n in (64, 128, 256, 512)]),
}  # fmt: skip


def random_model(width: int) -> Qwen2ForCausalLM:
    """Four layers of a hidden size."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=4,
        num_attention_heads=width // 32, num_key_value_heads=max(1, width // 64), max_position_embeddings=8192,
        tie_word_embeddings=True, attn_implementation=attention.register(),
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def measure(point: Point, rounds: int) -> dict[str, float]:
    """Seconds of processor time and megabytes of a point, in this process."""
    torch.set_num_threads(1)
    model = random_model(point.width)
    if point.work == "rollout":
        groups = max(1, point.batch // 8)
        asked = Rollout(
            groups=groups,
            group_size=8,
            turns=point.turns,
            prompt=200,
            response=point.response,
            state=60,
        )
        work = rollout_work(model, asked, None)
    else:
        rows = Rows(rows=point.batch, shortest=point.length, longest=point.length)
        work = sft_work(model, rows, None, max_tokens=4096)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
    return {"cpu_s": round(statistics.median(times), 4), "memory_mb": round(grown / 1024, 1)}


def exponent(sizes: list[float], values: list[float]) -> float:
    """The slope of a line through the logarithms."""
    return round(float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-3)), 1)[0]), 2)


def curves(rounds: int) -> dict[str, dict[str, object]]:
    """Every curve: sizes, seconds, megabytes, and their exponents."""
    results = {}
    for name, (axis, points) in CURVES.items():
        measured = []
        for point in points:
            command = [
                sys.executable,
                __file__,
                "--rounds",
                str(rounds),
                "--point",
                json.dumps(asdict(point)),
            ]
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, **ONE_THREAD},
            )
            measured.append(json.loads(done.stdout.splitlines()[-1]))
        sizes = [getattr(point, axis) for point in points]
        seconds, memory = [m["cpu_s"] for m in measured], [m["memory_mb"] for m in measured]
        results[name] = {
            "axis": axis, "sizes": sizes, "cpu_s": seconds, "memory_mb": memory,
            "time_exponent": exponent(sizes, seconds), "memory_exponent": exponent(sizes, memory),
        }  # fmt: skip
        sys.stdout.write(
            f"{name}: time {results[name]['time_exponent']}, memory {results[name]['memory_exponent']}\n"
        )
    return results


def picture(results: dict, path: Path) -> None:
    """Time and memory of every curve relative to its first point, with the line of proportion."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "spa"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
    for axis, (name, curve) in zip(axes.flat, results.items(), strict=True):
        sizes = np.array(curve["sizes"], float) / curve["sizes"][0]
        axis.plot(sizes, sizes, color="0.7", linestyle=":", label="proportional")
        for key, label in (("cpu_s", "time"), ("memory_mb", "memory")):
            shown = f"{label}, exponent {curve['time_exponent' if key == 'cpu_s' else 'memory_exponent']}"
            axis.plot(
                sizes, np.array(curve[key]) / curve[key][0], marker="o", markersize=4, label=shown
            )
        axis.set(
            xscale="log",
            yscale="log",
            title=name,
            xticks=sizes,
            xticklabels=[str(n) for n in curve["sizes"]],
        )
        axis.minorticks_off()
        axis.legend(fontsize=8)
    figure.supylabel("relative to the smallest")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/growth.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/growth.svg"))
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        sys.stdout.write(json.dumps(measure(Point(**options.point), options.rounds)) + "\n")
        return
    results = curves(options.rounds)
    options.output.write_text(
        json.dumps({"machine": machine(), "curves": results}, indent=1) + "\n"
    )
    picture(results, options.picture)


if __name__ == "__main__":
    main()
