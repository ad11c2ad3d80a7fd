"""Everything that takes time in a run beside what others take for it, in one run: `make bench`, `make bench QUICK=1`.

    python benchmarks/bench.py [--quick] [--check FILE] [--model FOLDER] [--trl PYTHON] [--vllm PYTHON] [--output FILE]

Every side is a process of its own with one thread, warmed up by a round that is not counted; then the sides of a row
take turns. A ratio is the median over rounds of the peer's processor time by ours, with the quartiles; wall time stands
beside it. Rows whose peer is not installed, or failed, say so. `--check` compares the ratios with those of a committed
result, and ends with status 1 if one is lower than NOISE allows, or if a side failed.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# share by which a ratio may be lower than the committed one on a machine of the same kind
NOISE = 0.25
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0",
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Our side and its peers; `asked` is the ratio that we want, `memory` the most of the peer's memory."""

    name: str
    kind: str
    size: str
    peers: Sequence[str]
    asked: float
    memory: float | None = None


ROWS = (
    Row(
        name="rollout, 5 turns, built-in model", kind="rollout", size="small", asked=6,
        peers=("hf_float32", "hf_bfloat16"),
    ),
    Row(name="rollout, 2 turns, 135M", kind="rollout", size="real", peers=("hf_bfloat16",), asked=6),
    Row(name="rollout, 2 turns, 135M (vLLM)", kind="rollout", size="real", peers=("vllm_bfloat16",), asked=2),
    Row(
        name="SFT step, built-in model", kind="sft", size="small", asked=2.5, memory=0.5,
        peers=("trl_bfloat16", "trl_float32", "trl_packed"),
    ),
    Row(name="SFT step, 135M", kind="sft", size="real", peers=("trl_bfloat16",), asked=2.5, memory=0.5),
    Row(name="PPO score and update, built-in model", kind="ppo", size="small", peers=("plain",), asked=2.5, memory=1),
)  # fmt: skip


class Side:
    """A process that does a round of work for every line."""

    def __init__(self, command: Sequence[str]) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **ONE_THREAD},
        )  # fmt: skip

    def round(self) -> dict[str, float]:
        """Do a round. Raises RuntimeError with what the process said if it ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        status = self.process.wait()
        self.log.seek(0)
        killed = f"\nended by {signal.Signals(-status).name}" if status < 0 else ""
        raise RuntimeError(self.log.read()[-600:] + killed)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.log.close()


def command(row: Row, side: str, options: argparse.Namespace, tiny: str) -> list[str] | str:
    """Command that starts a side, or the reason why it cannot start."""
    quick = ["--quick"] if options.quick else []
    peer, _, setting = side.partition("_")
    if peer in ("trl", "vllm"):
        python = getattr(options, peer)
        model = tiny if row.size == "small" else options.model
        if python is None or not Path(python).exists():
            return f"there is no environment with {peer}. Run `make bench` to make the environment."
        if model == "random":
            return "--model is missing: smollm2 or a folder"
        order = [model, row.size, setting]
        return [python, str(HERE / f"bench_{peer}.py"), *order, *quick]
    return [
        sys.executable,
        str(HERE / "bench_ours.py"),
        row.kind,
        side,
        row.size,
        "--model",
        options.model,
        *quick,
    ]


def measured(row: Row, options: argparse.Namespace, tiny: str) -> dict[str, Any]:
    """The times of every side of a row, taken in turns, and what follows from them."""
    result: dict[str, Any] = {"row": row.name, "asked": row.asked, "peers": {}}
    commands = {side: command(row, side, options, tiny) for side in ("spa", *row.peers)}
    result["not_measured"] = {side: why for side, why in commands.items() if isinstance(why, str)}
    sides = {side: Side(words) for side, words in commands.items() if not isinstance(words, str)}
    if len(sides) < 2:
        for side in sides.values():
            side.close()
        return result
    seconds_of: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    try:
        for number in range(options.rounds + 1):
            for name, side in list(sides.items()):
                try:
                    times = side.round()
                except RuntimeError as error:
                    result.setdefault("failed", {})[name] = str(error)
                    sides.pop(name).close()
                    continue
                if number > 0:
                    seconds_of[name].append(times)
    finally:
        for side in sides.values():
            side.close()
    return result | summary(row, {name: times for name, times in seconds_of.items() if times})


def summary(row: Row, seconds_of: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, ratios and quartiles from the rounds of every side."""
    ours = seconds_of.get("spa", [])
    peers = {}
    for name, times in seconds_of.items():
        if name == "spa" or not ours:
            continue
        ratios = sorted(
            theirs["cpu"] / mine["cpu"] for theirs, mine in zip(times, ours, strict=False)
        )
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        peers[name] = {
            "seconds": round(statistics.median(t["cpu"] for t in times), 3),
            "ratio": round(statistics.median(ratios), 2),
            "quartiles": [round(low, 2), round(high, 2)],
            "wall_ratio": round(
                statistics.median(t["wall"] for t in times)
                / statistics.median(t["wall"] for t in ours),
                2,
            ),
            "memory": round(ours[-1]["peak_mb"] / times[-1]["peak_mb"], 2),
        }
    spent = statistics.median(t["cpu"] for t in ours) if ours else None
    tokens = ours[-1].get("tokens") if ours else None
    return {
        "seconds": spent and round(spent, 3),
        "tokens_s": spent and tokens and round(tokens / spent),
        "peak_mb": ours and ours[-1]["peak_mb"],
        "peers": peers,
    }


def alone(kind: str, size: str, options: argparse.Namespace, rounds: int) -> dict[str, float]:
    """Medians of a row without peers."""
    row = Row(name=kind, kind=kind, size=size, peers=(), asked=0)
    words = command(row, "spa", options, "")
    assert not isinstance(words, str)
    side = Side(words)
    try:
        times = [side.round() for _ in range(rounds + 1)][1:]
    finally:
        side.close()
    return {name: statistics.median(t[name] for t in times) for name in times[0]}


def shares(
    limits: dict[str, float], forward: dict[str, float], rows: list[dict[str, Any]]
) -> dict[str, float]:
    """Efficiency as shares of the machine's limits: of the bfloat16 matrix peak, and of reading the
    weights once."""
    peak = limits["bfloat16_gflops"]
    reached = {
        "prefill, 135M, of the matrix peak": forward["prefill_gflops"] / peak,
        "decode step of 16 rows, 135M, times its floor": forward["decode_s"]
        * limits["read_gb_s"]
        / forward["weight_gb"],
    }
    for row in rows:
        if row["row"] == "SFT step, 135M" and row.get("tokens_s"):
            reached["SFT, 135M, of the matrix peak"] = (
                6 * forward["parameters"] * row["tokens_s"] / 1e9 / peak
            )
    return {name: round(value, 2) for name, value in reached.items()}


def machine() -> dict[str, Any]:
    """Processor, versions and load."""
    try:
        names = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        name = names[0].partition(":")[2].strip()
    except (OSError, IndexError):
        name = platform.processor()
    from spa.models.precision import processor_feature

    versions = {
        package: metadata.version(package) for package in ("torch", "transformers", "numpy")
    }
    return {
        "processor": name, "feature": processor_feature(), "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1), "python": platform.python_version(), **versions,
    }  # fmt: skip


def lower(results: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """Ratios that are lower than the committed ones by more than the noise."""
    known = {
        (row["row"], peer): value["ratio"]
        for row in committed["rows"]
        for peer, value in row["peers"].items()
    }
    return [
        f"{row['row']} against {peer}: {value['ratio']}, committed {known[row['row'], peer]}"
        for row in results["rows"]
        for peer, value in row["peers"].items()
        if value["ratio"] < (1 - NOISE) * known.get((row["row"], peer), 0)
    ]


def table(results: dict[str, Any]) -> list[str]:
    """The rows as a Markdown table."""
    lines = [
        "| work | peer | peer's time / ours (quartiles) | our memory / peer's | asked |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        for peer, value in row["peers"].items():
            low, high = value["quartiles"]
            lines.append(
                f"| {row['row']} | {peer.replace('_', ', ')} | {value['ratio']} ({low} to {high}) | {value['memory']} "
                f"| {row['asked']} |"
            )
        lines += [
            f"| {row['row']} | {peer.replace('_', ', ')} | not measured: {why} | | {row['asked']} |"
            for peer, why in row["not_measured"].items()
        ]
        lines += [
            f"| {row['row']} | {side.replace('_', ', ')} | failed: {reason(said)} | | {row['asked']} |"
            for side, said in row.get("failed", {}).items()
        ]
    return lines


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sides that ended before they were measured, one line each."""
    return [
        f"{row['row']} against {side}: failed: {reason(said)}"
        for row in rows
        for side, said in row.get("failed", {}).items()
    ]


def reason(said: str) -> str:
    """The last line of what a side wrote before it ended, for a cell of the table."""
    written = [line.strip() for line in said.splitlines() if line.strip()]
    return (written or ["it wrote nothing"])[-1].replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the speed of spa with other packages and with the limits of the machine."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="measure small workloads in few rounds (about three minutes)",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds per package (default: 7; with --quick: 3)"
    )
    parser.add_argument(
        "--model",
        default="random",
        help="a model of 135M parameters: smollm2 (make smollm2) or a folder",
    )
    parser.add_argument(
        "--trl",
        metavar="PYTHON",
        help="Python interpreter in which requirements-trl.txt is installed",
    )
    parser.add_argument(
        "--vllm",
        metavar="PYTHON",
        help="Python interpreter in which requirements-vllm.txt is installed",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="JSON file of an earlier result; fail if a ratio is worse than in this file",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="output file of the JSON (default: standard output)",
    )
    parser.add_argument(
        "--only",
        metavar="TEXT",
        default="",
        help="run only the workloads whose name contains this string",
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    from environments import lakes

    from spa.models.load import model_source

    tiny = str(model_source("builtin:tiny"))
    if options.model != "random":
        options.model = str(model_source(options.model))
    rows = []
    for row in ROWS:
        if options.only in row.name:
            rows.append(measured(row, options, tiny))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    limits, forward = alone("limits", "small", options, 3), alone("forward", "real", options, 3)
    results = {
        "machine": machine(),
        "quick": options.quick,
        "rounds": options.rounds,
        "model": "SmolLM2-135M"
        if options.model != "random"
        else "random weights of SmolLM2-135M's shape",
        "rows": rows,
        "FrozenLake": lakes(3 if options.quick else 7),
        "limits": {
            name: round(value, 1)
            for name, value in limits.items()
            if name.endswith(("flops", "_s"))
        },
        "forward": {name: round(value, 4) for name, value in forward.items()},
        "shares": shares(limits, forward, rows),
    }
    text = json.dumps(results, indent=1)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(table(results)) + "\n" if options.output else text + "\n")
    worse = (
        lower(results, json.loads(options.check.read_text(encoding="utf-8")))
        if options.check
        else []
    )
    sys.stderr.write("".join(f"slower than the committed result: {line}\n" for line in worse))
    sys.stderr.write("".join(f"{line}\n" for line in failures(rows)))
    return 1 if worse or (options.check and failures(rows)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
