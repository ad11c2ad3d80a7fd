"""Measure how the viewer opens a large run: time to the first page, to the full index, to an
episode, memory. Prints JSON.

    python benchmarks/viewer.py [--episodes N] [--folder FOLDER]

100,000 episodes of three turns and about 450 tokens take 2 GB of disk, in a temporary folder unless FOLDER is given.
The server runs as a process of its own, as `spa view` starts it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

STATE = "Player (P) is at (1,1); goal (G) is at (3,1); hole (O) is at (2,2)."
THOUGHT = f"<observation>\n{STATE}\n</observation>On.<prediction>\n{STATE}\n</prediction>"
RESPONSE = f"<think>{THOUGHT}</think><answer>Up</answer>"
TOKENS = 450
PER_FILE = 1_000


def episode(number: int) -> dict[str, Any]:
    """An episode as a recorder writes it."""
    won = number % 3 == 0
    response = {
        "think": "On.",
        "observation": STATE,
        "prediction": STATE,
        "actions": ["Up"],
        "well_formed": number % 17 > 0,
    }
    turn = {
        "state": STATE,
        "actions_left": 10,
        "response_text": RESPONSE,
        "response": response,
        "executed": ["Up"],
        "reward": float(won),
        "penalty": 0.0,
        "next_state": STATE if number % 2 else STATE.replace("(1,1)", "(0,1)"),
        "infos": [{"action_is_valid": True, "action_is_effective": True, "success": won}],
        "finish_reason": "stop",
    }
    facts = {
        "tag": "FrozenLake",
        "mode": "add_worldmodel",
        "state_text": "coords",
        "puzzle_seed": number,
    }
    place = {
        "noise_seed": 0,
        "puzzle_hash": f"{number:x}",
        "group": number // 8,
        "member": number % 8,
    }
    tokens = {
        "token_ids": list(range(TOKENS)),
        "sampled": [True] * TOKENS,
        "turn_index": [0] * TOKENS,
    }
    return {
        "episode_id": f"train/{number}",
        **facts,
        **place,
        "stop": "success" if won else "turn_cap",
        "success": won,
        "turns": [turn] * 3,
        "messages": [{"role": "user", "content": STATE}, {"role": "assistant", "content": RESPONSE}]
        * 3,
        **tokens,
        "logprobs": [-0.12345678901234567] * TOKENS,
        "error": "",
        "version": 0,
    }


def write_run(folder: Path, episodes: int) -> None:
    """A PPO stage with `episodes` episodes, 1,000 in a file."""
    trajectories = folder / "ppo" / "trajectories"
    trajectories.mkdir(parents=True)
    for step in range(0, episodes, PER_FILE):
        with (trajectories / f"train-{step // PER_FILE:06d}.jsonl").open("w") as file:
            for number in range(step, min(step + PER_FILE, episodes)):
                file.write(json.dumps(episode(number), separators=(",", ":")) + "\n")


def ask(address: str) -> dict[str, Any]:
    """The JSON at an address."""
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


def peak_mb(process: int) -> float | None:
    """Peak resident memory of a process (Linux)."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def cpu_s(process: int) -> float | None:
    """Seconds that a process has computed (Linux): other work on the machine does not count."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(run: Path, episodes: int) -> dict[str, Any]:
    """Start the viewer, wait for the first page and for the whole index."""
    code = "import sys; from spa.cli import main; sys.exit(main(['view', *sys.argv[1:]]))"
    start = time.perf_counter()
    command = [sys.executable, "-c", code, str(run), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address, _, token = server.stdout.readline().split()[0].partition("?")
        first = None
        first_cpu = None
        while True:
            page = ask(f"{address}api/episodes?{token}&limit=50")
            if page["episodes"] and first is None:
                first = time.perf_counter() - start
                first_cpu = cpu_s(server.pid)
            if page["total"] >= episodes:
                break
            time.sleep(0.05)
        full = time.perf_counter() - start
        begin = time.perf_counter()
        ask(f"{address}api/episodes?{token}&limit=50&wrong=1&success=0&order=-score&offset=20000")
        filtered = time.perf_counter() - begin
        last = ask(f"{address}api/episodes?{token}&limit=1&offset={episodes - 1}")["episodes"][0]
        begin = time.perf_counter()
        matching = ask(f"{address}api/episodes?{token}&limit=1&q={last['episode']}")["episodes"]
        searched = time.perf_counter() - begin
        begin = time.perf_counter()
        ask(f"{address}api/episode/{matching[0]['id']}?{token}")
        one = time.perf_counter() - begin
        memory = peak_mb(server.pid)
        server.terminate()
    return {
        "first page s": round(first or full, 2),
        "first page CPU s": first_cpu,
        "all episodes s": round(full, 2),
        "filtered page s": round(filtered, 3),
        "full-text search s": round(searched, 3),
        "one episode s": round(one, 3),
        "peak MB": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Open a large run in the viewer.")
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument(
        "--folder", type=Path, help="folder in which the run is kept for later measurements"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = options.folder or Path(temporary) / "run"
        if not run.exists():
            write_run(run, options.episodes)
        for file in run.glob(".episodes.sqlite*"):
            file.unlink()
        size = sum(path.stat().st_size for path in run.glob("**/*.jsonl"))
        results = {
            "machine": {"python": platform.python_version(), "load": os.getloadavg()[0]},
            "episodes": options.episodes,
            "gigabytes": round(size / 1e9, 2),
            "opened for the first time": opened(run, options.episodes),
            "opened again": opened(run, options.episodes),
        }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
