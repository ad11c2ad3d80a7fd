"""Which tasks of a bridged library keep to the contract, and what a step costs. Prints a Markdown table.

    python benchmarks/bridges.py LIBRARY [--only TEXT] [--since TASK] [--seconds S] [--steps N]

Every task is checked as `spa env check` does it, in a process of its own that is ended after S seconds. Costs are
processor time in milliseconds: the mean of 20 resets, and of the steps of 20 random episodes. Task by task a line of
JSON goes to standard error.

    python benchmarks/bridges.py LIBRARY --card TASK [--actions N] [--puzzles N]

One row of another table: what random legal actions get on the first N puzzles (as `spa env measure` counts it), what
the library's own expert gets, and the same costs.
"""

import argparse
import json
import multiprocessing
import sys
import time

from spa.envs.base import TextEnv
from spa.envs.registry import list_tasks, make_env
from spa.errors import ConfigError, EnvFault
from spa.tables import Table
from spa_author.cards import measure
from spa_author.checker import check, episode


def one(library: str, task: str, steps: int) -> dict:
    """Check one task: the reason why it cannot be made, or its cost."""
    name = f"{library}:{task}"
    try:
        make_env(name)
    except (ConfigError, EnvFault) as error:
        return {"task": task, "kind": "cannot be made", "why": str(error).partition(": ")[2]}
    wrong = [
        finding for finding in check(lambda: make_env(name), seeds=3, steps=steps) if not finding.ok
    ]
    if wrong:
        return {"task": task, "kind": wrong[0].check, "why": wrong[0].message}
    env = make_env(name)
    reset, step = costs(env, steps)
    legal = env.legal_actions() != ()
    expert = env.reset(seed=0) is not None and bool(env.expert_actions(5))
    return {
        "task": task,
        "kind": "",
        "reset": reset,
        "step": step,
        "legal": legal,
        "expert": expert,
    }


def costs(env: TextEnv, steps: int) -> tuple[float, float]:
    """Milliseconds of a reset and of a step."""
    resets, plays, actions = 0.0, 0.0, 0
    for seed in range(20):
        start = time.process_time()
        env.reset(seed=seed)
        middle = time.process_time()
        actions += sum(1 for _ in episode(env, seed, steps))
        resets, plays = resets + middle - start, plays + time.process_time() - middle
    return 50 * resets, 1000 * plays / actions


def card(library: str, task: str, actions: int, puzzles: int) -> str:
    """A row in Markdown: task, actions, different puzzles, random success and score, the expert's success, costs."""
    name = f"{library}:{task}"
    measured = measure(name, name, None, actions, puzzles=puzzles)
    env = make_env(name)
    wins = [expert_wins(env, seed, actions) for seed in range(puzzles)]
    expert = "–" if None in wins else f"{sum(map(bool, wins)) / puzzles:.1%}"
    reset, step = costs(env, actions)
    cells = [
        f"`{name}`",
        f"{actions}",
        f"{measured.distinct_puzzles} of {puzzles}",
        f"{measured.random_success:.1%}",
    ]
    cells += [f"{measured.random_score:.3g}", expert, f"{reset:.2g}", f"{step:.2g}"]
    return f"| {' | '.join(cells)} |"


def expert_wins(env: TextEnv, seed: int, actions: int) -> bool | None:
    """Return whether the environment's expert wins the puzzle of a seed; None if it has none."""
    env.reset(seed=seed)
    for taken in range(actions):
        name = next(iter(env.expert_actions(actions - taken)), None)
        action = None if name is None else env.to_action(name)
        if action is None:
            return None if taken == 0 else False
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return bool(info["success"])
    return False


def bounded(library: str, task: str, steps: int, seconds: float) -> dict:
    """`one` in a process of its own, which has the library already."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(one(library, task, steps)))
    process.start()
    there.close()
    try:
        return (
            here.recv()
            if here.poll(seconds)
            else {"task": task, "kind": "too slow", "why": f"over {seconds:g} s"}
        )
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
            f"{steps[middle]:.3g} ms (most {steps[-1]:.3g}).\n\n"
            + ", ".join(f"`{row['task']}`" for row in good)
        )
    others = [
        (f"`{row['task']}`", row["kind"], " ".join(row["why"].split())[:160])
        for row in rows
        if row["kind"]
    ]
    made = Table(("not", "because", "what happens"), others).markdown()
    return "\n".join([*lines, "", made]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument(
        "--only", default="", help="run only the tasks whose name contains this string"
    )
    parser.add_argument(
        "--since", default="", help="run only the tasks from this name on, in alphabetical order"
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--card", metavar="TASK", help="measure this task")
    parser.add_argument("--actions", type=int, default=10)
    parser.add_argument("--puzzles", type=int, default=200)
    options = parser.parse_args()
    if options.card:
        print(card(options.library, options.card, options.actions, options.puzzles))
        return
    rows = []
    for task in list_tasks(options.library):
        if options.only in task and task >= options.since:
            rows.append(bounded(options.library, task, options.steps, options.seconds))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    print(table(options.library, rows))


if __name__ == "__main__":
    main()
