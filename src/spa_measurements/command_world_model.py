"""`spa eval --world-model`: the accuracy of a model's observations and predictions."""

import argparse
from typing import Any

from spa.commands.arguments import result_file, say
from spa.evaluation.text import interval_text, percent
from spa.run.console import write_out
from spa.tables import Table


def evaluate_world_model(model: str, options: argparse.Namespace) -> None:
    """Measure the accuracy of a model as a world model, write the result and print a table. Raises
    SpaError for errors that the user can fix."""
    from spa.api.evaluation import plan_evaluation
    from spa_measurements.measure_world_model import measure_world_model

    transitions = options.transitions or 1000
    target, cfg, output = plan_evaluation(
        model,
        options.config,
        overrides=options.overrides,
        output=options.output,
        suffix="-world-model",
    )
    if options.dry_run:
        write_out(
            f"The command would measure {transitions} states per environment and write {output}.\n"
        )
        return
    result = measure_world_model(
        cfg,
        target,
        output=result_file(output),
        transitions=transitions,
        steps=options.rollout_steps or 3,
        greedy=options.greedy,
    )
    print_result(result)
    write_out(f"result: {output}\n")


def print_result(result: dict[str, Any]) -> None:
    """Print a table and remarks for each environment tag."""
    for tag, metrics in result["tags"].items():
        Table(("", "model", "copying", "other state"), _rows(metrics), right=(1, 2, 3)).print(
            f"{result['policy']} on {tag}: {metrics['transitions']} states"
        )
        say(remarks(metrics))


def _rows(metrics: dict[str, Any]) -> list[tuple[str, ...]]:
    copy = metrics["baselines"]["copy"]
    other = metrics["baselines"]["other_state"]
    rows: list[tuple[str, ...]] = [
        ("well-formed responses", percent(metrics["format_rate"]), "", ""),
        # The copy baseline repeats the true state, so its observations are always exact.
        ("observation exact", interval_text(metrics["observation_exact"]), "100.0", ""),
        (
            "prediction exact",
            interval_text(metrics["prediction_exact"]),
            percent(copy["prediction_exact"]),
            percent(other["prediction_exact"]),
        ),
        # Copying the state is wrong wherever something changed, hence 0.0.
        (
            "  where something changed",
            percent(metrics["prediction_exact_where_changed"]),
            "0.0",
            "",
        ),
    ]
    # The result has an upper bound only if the next state is random.
    if "ceiling" in metrics:
        rows.append(("  upper bound (random outcomes)", percent(metrics["ceiling"]), "", ""))
    rows += [
        (label, *(percent(numbers[name]) for numbers in (metrics, copy, other)))
        for label, name in (
            ("cell accuracy", "cell_accuracy"),
            ("changed-cell F1", "changed_cell_f1"),
        )
    ]
    rows += [
        (f"{name} exact", percent(score["exact"]), "", "")
        for name, score in metrics["entities"].items()
    ]
    if "drawing_agrees" in metrics:
        rows.append(("grid and coordinates agree", percent(metrics["drawing_agrees"]), "", ""))
    return rows + [
        (
            f"open-loop rollout, step {part['step']}",
            interval_text(part["prediction_exact"]),
            percent(part["copy_exact"]),
            "",
        )
        for part in metrics["open_loop"]
    ]


def remarks(metrics: dict[str, Any]) -> list[str]:
    """Return sentences that help to interpret the metrics."""
    lines = ["Shares are in percent. Brackets show the 95 % CI over puzzles."]
    if metrics["format_rate"] == 0:
        lines.append(
            "No response follows the world-model format, so every observation and prediction counts as "
            "wrong. Fine-tune the model on world-model data first."
        )
    known = metrics.get("likelihood")
    if known:
        nll = known["nll_per_token"]
        calibrated = known["calibration"]
        lines.append(
            f"Negative log-likelihood of the true next state: {nll['prediction']:.3f} nats per token "
            f"(observation {nll['observation']:.3f}, answer {nll['answer']:.3f}, uniform guess "
            f"{known['uniform_nll_per_token']:.2f}). Calibration error: {calibrated['ece']:.3f}."
        )
        if "prefers_truth" in known:
            share = known["prefers_truth"]
            lines.append(
                f"In {share['mean']:.0%} of {share['n']} transitions that change the state, the true next "
                "state is more likely than an unchanged state."
            )
    return lines
