"""`spa diagnose`: what is wrong with the rollouts of a run, of this package or of another."""

import argparse
import json
import sys
from typing import Any


def main(args: list[str]) -> int:
    """Print what is found; 0 whatever it is. Raises DataError, ModelError."""
    parser = argparse.ArgumentParser(prog="spa diagnose", description="What is wrong with rollouts, of any stack.")
    parser.add_argument("rollouts", help="a .jsonl or .json file, or a folder of them")
    parser.add_argument(
        "--model", help="the model whose tokens they are: masks and tokens are then read, not only counted"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    options = parser.parse_args(args)

    from spa.evaluate.diagnose import diagnose
    from spa.evaluate.rollouts import read_rollouts

    rollouts = read_rollouts(options.rollouts)
    tokenizer = None
    if options.model:
        from spa.models.load import load_tokenizer

        tokenizer = load_tokenizer(options.model)
    report = diagnose(rollouts, tokenizer)
    sys.stdout.write(json.dumps(report, indent=1) + "\n" if options.json else _text(report))
    return 0


def _text(report: dict[str, Any]) -> str:
    stacks = ", ".join(f"{name} {count}" for name, count in report["stacks"].items())
    score, model, bits = report["rewards"], report["world_model"], report["collapse"]
    lines = [f"{report['rollouts']} rollouts ({stacks}), {report['format']['replies']} replies"]
    if score["mean"] is not None:
        lines.append(f"reward {score['mean']:.3f}, standard deviation {score['std']:.3f}")
    if score["by_turn"]:
        lines.append("by turn: " + ", ".join(f"{value:.3f}" for value in score["by_turn"]))
    for name in ("observation", "prediction"):
        if model.get(name):
            lines.append(f"{name}s right: {model[f'{name}_right']} of {model[name]}")
    lines.append(f"repeated words: {report['repetition']['mean']:.1%} of four-word runs")
    if bits:
        lines.append(f"first replies: {bits['entropy']:.2f} bits, {bits['information']:.2f} of them about the prompt")
    lines += (
        ["", *(f"! {text}" for text in report["findings"])] if report["findings"] else ["", "nothing wrong was found"]
    )
    return "\n".join(lines) + "\n"
