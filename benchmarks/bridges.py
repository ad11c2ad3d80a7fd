"""Which tasks of a bridged library keep to the contract, and what a step costs. Prints a Markdown table.

    python benchmarks/bridges.py LIBRARY [--only TEXT] [--since TASK] [--seconds S] [--steps N]

Every task is checked as `spa check-env` does it, in a process of its own that is ended after S seconds. Costs are
processor time in milliseconds: the mean of 20 resets, and of the steps of 20 random episodes. Task by task a line of
JSON goes to standard error.
"""

import argparse
import json
import multiprocessing
import sys
import time

from spa.envs.bridges import list_tasks
from spa.envs.checker import check, episode
from spa.envs.registry import make_env
from spa.errors import ConfigError


def one(library: str, task: str, steps: int) -> dict:
    """What is found about one task: why not, or what it costs."""
    name = f"{library}:{task}"
    try:
        make_env(name)
    except ConfigError as error:
        return {"task": task, "kind": "cannot be made", "why": str(error).partition(": ")[2]}
    wrong = [found for found in check(lambda: make_env(name), seeds=3, steps=steps) if not found.ok]
    if wrong:
        return {"task": task, "kind": wrong[0].check, "why": wrong[0].message}
    env, resets, plays, actions = make_env(name), 0.0, 0.0, 0
    for seed in range(20):
        start = time.process_time()
        env.reset(seed=seed)
        middle = time.process_time()
        actions += sum(1 for _ in episode(env, seed, steps))
        resets, plays = resets + middle - start, plays + time.process_time() - middle
    legal = env.legal_actions() != ()
    expert = env.reset(seed=0) is not None and bool(env.expert_actions(5))
    return {
        "task": task,
        "kind": "",
        "reset": 50 * resets,
        "step": 1000 * plays / actions,
        "legal": legal,
        "expert": expert,
    }


def bounded(library: str, task: str, steps: int, seconds: float) -> dict:
    """`one` in a process of its own, which has the library already."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(one(library, task, steps)))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else {"task": task, "kind": "too slow", "why": f"over {seconds:g} s"}
    except EOFError:
        return {"task": task, "kind": "cannot be made", "why": "its process died"}
    finally:
        process.kill()
        process.join()


def table(library: str, rows: list[dict]) -> str:
    """Two tables in Markdown: a line for those that conform, and a row for each that does not."""
    good = [row for row in rows if not row["kind"]]
    lines = [f"`{library}`: {len(good)} of {len(rows)} tasks conform"]
    if good:
        resets, steps = sorted(row["reset"] for row in good), sorted(row["step"] for row in good)
        middle = len(good) // 2
        lines[0] += (
            f", {sum(row['legal'] for row in good)} list legal actions, {sum(row['expert'] for row in good)} have an "
            f"expert; median cost of a reset {resets[middle]:.3g} ms (most {resets[-1]:.3g}), of a step "
            f"{steps[middle]:.3g} ms (most {steps[-1]:.3g}).\n\n" + ", ".join(f"`{row['task']}`" for row in good)
        )
    lines += ["", "| not | because | what happens |", "|---|---|---|"]
    for row in rows:
        if row["kind"]:
            why = " ".join(row["why"].split()).replace("|", "\\|")
            lines.append(f"| `{row['task']}` | {row['kind']} | {why[:160]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--only", default="", help="tasks whose name holds this text")
    parser.add_argument("--since", default="", help="tasks from this name on, by the alphabet")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    rows = []
    for task in list_tasks(options.library):
        if options.only in task and task >= options.since:
            rows.append(bounded(options.library, task, options.steps, options.seconds))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    print(table(options.library, rows))


if __name__ == "__main__":
    main()
