"""What `spa diagnose` found, as one HTML page in the report's style: the findings, then tables and curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spa.report.build import render_page
from spa.report.charts import Chart, Series, number

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first column names the row."""

    head: Row
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the page."""

    title: str
    help: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()

    @property
    def anchor(self) -> str:
        """Its name in a link."""
        return self.title.lower().replace(" ", "-")


def diagnosis_page(report: Mapping[str, Any], source: str) -> str:
    """The result of `spa.evaluate.diagnose.diagnose` as one HTML page that loads nothing and runs no script. All text
    of rollouts is escaped."""
    findings = report["findings"]
    what = f"{len(findings)} findings" if len(findings) != 1 else "1 finding"
    stacks = ", ".join(f"{name} {count}" for name, count in report["stacks"].items())
    return render_page(
        "diagnosis.html.j2",
        source=source,
        verdict=f"{what if findings else 'Nothing wrong was found'} in {report['rollouts']} rollouts ({stacks}).",
        findings=findings,
        sections=[part for part in _parts(report) if part is not None],
    )


def _parts(report: Mapping[str, Any]) -> Iterator[Part | None]:
    yield _rewards(report["rewards"])
    yield _replies(report)
    yield _masks(report)
    yield _replay(report["replay"])
    yield _world(report)
    yield _likelihood(report["state_likelihood"]) if report["world_model"].get("prediction") else None


def _rewards(score: Mapping[str, Any]) -> Part:
    rows = (("rollouts with a reward", f"{score['with_reward']}"),)
    if score["mean"] is not None:
        rows += (("mean", number(score["mean"])), ("standard deviation", number(score["std"])))
    rows += (("groups without a spread", f"{score['groups_without_spread']} of {score['groups']}"),)
    by_turn = tuple((turn, value) for turn, value in enumerate(map(float, score["by_turn"]), 1))
    line = Series("mean reward", tuple((float(turn), value) for turn, value in by_turn))
    chart = Chart("Reward by turn", "The mean over the rollouts that reach the turn.", (line,), x_label="turn")
    text = "A group whose rollouts have one reward teaches a group baseline nothing."
    return Part("Rewards", text, (Table(("", ""), rows),), (chart,) if by_turn else ())


def _replies(report: Mapping[str, Any]) -> Part:
    form, bits = report["format"], report["collapse"]
    rows = [
        ("replies", f"{form['replies']}"),
        ("empty", f"{form['empty']}"),
        ("four-word runs that stood before", number(report["repetition"]["mean"], True)),
        ("replies that repeat over half", f"{report['repetition']['replies_over_half']}"),
    ]
    if bits:
        rows.append(("entropy of first answers, bits", number(bits["entropy"])))
        rows.append(("of it about the prompt, bits", number(bits["information"])))
    tags = tuple(
        (f"<{tag}>", f"{count['replies']}", f"{count['broken']}", f"{count['lacking']}")
        for tag, count in form["tags"].items()
    )
    tables = [Table(("", ""), tuple(rows))]
    if tags:
        tables.append(Table(("block", "replies with it", "not one closed block", "missing though asked for"), tags))
    return Part("Replies", "How replies are written, and whether they depend on the prompt.", tuple(tables))


def _masks(report: Mapping[str, Any]) -> Part | None:
    masks, tokens = report["masks"], report["tokens"]
    if not masks["with_mask"] and not tokens:
        return None
    names = {
        "another_length": "mask of another length than the tokens",
        "nothing_trained": "nothing trained",
        "all_trained": "several turns and nothing masked",
        "others_trained": "messages of other roles trained",
    }
    rows = [(text, f"{len(masks[name])}", _places(masks[name])) for name, text in names.items()]
    if tokens:
        rows.append(
            ("replies with other tokens when tokenised again", f"{len(tokens['changed'])}", _places(tokens["changed"]))
        )
    rows.append(("replies replaced in the conversation", f"{masks['replaced']}", ""))
    text = f"{masks['with_mask']} rollouts have tokens and a mask."
    return Part("Masks and tokens", text, (Table(("", "how many", "where"), tuple(rows)),))


def _places(places: Sequence[str], most: int = 3) -> str:
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return "; ".join(places[:most]) + more


def _replay(replay: Mapping[str, Any]) -> Part | None:
    if not replay:
        return None
    rows = [("replayed", f"{replay['played']}"), ("without a seed", f"{replay['without_seed']}")]
    rows += [(f"compared by {name}", f"{count}") for name, count in replay["by"].items()]
    rows.append(("not to be compared", f"{replay['unchecked']}"))
    tables = [Table(("", ""), tuple(rows))]
    if replay["differ"]:
        others = tuple((part["where"], f"{part['turn']}", part["fault"]) for part in replay["differ"])
        tables.append(Table(("rollout", "differs at turn", "the game said"), others))
    return Part("Replay", "The recorded actions, taken again in the game.", tuple(tables))


def _world(report: Mapping[str, Any]) -> Part | None:
    model, drift = report["world_model"], report["drift"]
    if not model.get("observation") and not model.get("prediction"):
        return None
    rows = [
        (f"{name}s right", f"{model[f'{name}_right']} of {model[name]}")
        for name in ("observation", "prediction")
        if model.get(name)
    ]
    if model.get("prediction"):
        rows.append(("predictions that repeat the observation", f"{model['copied']}"))
    tables, charts = [Table(("", ""), tuple(rows))], []
    for key, label, title in (
        ("by_actions", "actions ahead", "Drift with the actions ahead"),
        ("by_turn", "turn", "Drift over the turns"),
    ):
        if found := drift[key]:
            head = (label, "predictions", "right", "copying right", "cells wrong", "copying: cells wrong")
            tables.append(Table(head, tuple(_drift_row(row) for row in found)))
            charts.append(_drift_chart(title, label, found))
    text = "Predicted states against what came. Copying: repeating the state before, where true states are known."
    return Part("World model", text, tuple(tables), tuple(charts))


def _drift_row(row: Mapping[str, Any]) -> Row:
    known = "with_states" in row
    return (
        f"{row['at']}",
        f"{row['predictions']}",
        f"{row['right']}",
        f"{row['copy_right']} of {row['with_states']}" if known else "–",
        number(row["cells_wrong"], True) if known else "–",
        number(row["copy_cells_wrong"], True) if known else "–",
    )


def _drift_chart(title: str, label: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    lines = [Series("predictions", tuple((float(row["at"]), row["right"] / row["predictions"]) for row in rows))]
    known = tuple((float(row["at"]), row["copy_right"] / row["with_states"]) for row in rows if "with_states" in row)
    if known:
        lines.append(Series("copying", known, color=1))
    return Chart(title, "Share that is exactly right.", tuple(lines), x_label=label, percent=True)


def _likelihood(known: Mapping[str, Any]) -> Part:
    title = "Dynamics or copying"
    text = (
        "Negative log-likelihood of the tokens of predicted states, in nats: those that repeat what stood at their "
        "place in the state before (copied), and the others (changed). Log-probs are those of what the model said; "
        "“right” is how much of that came true."
    )
    if known["why_not"]:
        return Part(title, f"Cannot be told: {known['why_not']}.")
    tables, charts = [], []
    for split, rows in known["steps"].items():
        name = f" ({split})" if split else ""
        lines = tuple(
            Series(
                kind, tuple((float(row["step"]), row[kind]["nll"]) for row in rows if row[kind]["tokens"]), color=color
            )
            for color, kind in enumerate(("copied", "changed"))
        )
        lines = tuple(line for line in lines if line.points)
        charts.append(Chart(f"State tokens{name}", "Mean nats per token.", lines, x_label="training step"))
        ends = [
            (f"step {row['step']}, {kind}", row[kind]) for row in (rows[0], rows[-1]) for kind in ("copied", "changed")
        ]
        cells = tuple(
            (label, f"{part['tokens']}", _or_dash(part["nll"]), _or_dash(part["right"], True)) for label, part in ends
        )
        tables.append(Table((f"tokens{name}", "how many", "nats", "right"), cells))
        if part := known["falls"].get(split):
            fell = ("total", "changed", "copied", "mixture")
            tables.append(Table((f"fell by{name}", "nats"), tuple((key, number(part[key])) for key in fell)))
    return Part(title, text, tuple(tables), tuple(charts))


def _or_dash(value: float | None, percent: bool = False) -> str:
    return "–" if value is None else number(value, percent)
