"""The three drawings of the documentation, as SVG: `python tools/diagrams.py [FOLDER]`.

`stages.svg`: the three stages; `tokens.svg`: one turn as tokens, with what each loss trains on;
`stage-life.svg`: what a stage does from its start to its end. A test holds the committed files equal
to what this script writes.
"""

import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

WIDTH = 820
STYLE = (
    ".page{fill:#fff}.box{fill:#f4f6fa;stroke:#5b7083}.h{font-weight:600;font-size:15px;fill:#1b2a36}"
    ".t{fill:#33434f}.m{font-family:ui-monospace,monospace;font-size:12px;fill:#33434f}.w{fill:#b3261e}"
    ".g{fill:#1a7f4b}.l{stroke:#555;fill:none;stroke-width:1.4;marker-end:url(#a)}"
    ".c{font-family:ui-monospace,monospace;font-size:10.5px;fill:#1b2a36;text-anchor:middle}"
    ".given{fill:#e4e8ee;stroke:#b6c0cb}.sampled{fill:#d8e9f6;stroke:#0a5fa8}.on{fill:#0a5fa8}.off{fill:#e4e8ee}"
)
Line = tuple[str, str]
"""CSS classes and a text."""


def page(title: str, height: int, parts: Sequence[str]) -> str:
    """A drawing on white, with its title for screen readers."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="system-ui, sans-serif" font-size="13" role="img" aria-labelledby="t">',
            f'<title id="t">{escape(title)}</title>',
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(kind: str, x: float, y: float, words: str) -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, head: str, lines: Sequence[Line]) -> str:
    """A box with a heading and lines."""
    rows = [text(kind, x + 14, y + 46 + 18 * row, words) for row, (kind, words) in enumerate(lines)]
    frame = f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    return "".join([f"<g>{frame}", text("h", x + 14, y + 24, head), *rows, "</g>"])


def arrow(*points: tuple[float, float]) -> str:
    """A line through points, with a head at its end."""
    return f'<path class="l" d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>'


def stages() -> str:
    """Self-play, world-model SFT, PPO."""
    selfplay = [
        ("t", "The model plays. It writes what"),
        ("t", "it sees and what it expects."),
        ("m w", "<think><observation> said </…>"),
        ("m", "thoughts"),
        ("m w", "<prediction> said </…></think>"),
        ("m", "<answer>Right</answer>"),
        ("t g", "True states replace both blocks."),
    ]
    sft = [
        ("t", "Cross-entropy on the responses"),
        ("m g", "<observation> true </…>"),
        ("m g", "<prediction> true next </…>"),
        ("t", "Then a check: predictions against"),
        ("t", "copying the shown state."),
    ]
    ppo = [
        ("t", "Groups of episodes, rewards,"),
        ("t", "advantages, clipped policy loss."),
        ("t", "Validation on held-out puzzles"),
        ("t", "measures success and the"),
        ("t", "accuracy of predictions."),
    ]
    parts = [
        box(10, 14, 240, 190, "1  Self-play", selfplay),
        box(292, 14, 240, 190, "2  World-model SFT", sft),
        box(574, 14, 236, 190, "3  PPO", ppo),
        arrow((250, 109), (290, 109)),
        arrow((532, 109), (572, 109)),
        text("m", 10, 224, "data/*.parquet"),
        text("m", 292, 224, "sft/global_step_N/"),
        text("m", 574, 224, "ppo/global_step_N/"),
    ]
    title = (
        "Three stages: self-play writes examples, world-model SFT trains on them, PPO trains to win"
    )
    return page(title, 236, parts)


TURN: tuple[tuple[str, str], ...] = (
    ("user:", "prompt"), ("P at", "shown"), ("(0,1)", "shown"), ("think", "prompt"),
    ("obs", "tag"), ("P at", "state"), ("(0,1)", "state"), ("/obs", "tag"),
    ("pred", "tag"), ("P at", "state"), ("(0,2)", "state"), ("/pred", "tag"),
    ("/think", "tag"), ("answer", "tag"), ("Right", "tag"), ("end", "tag"),
)  # fmt: skip
MASKS: tuple[tuple[str, str, str], ...] = (
    ("PPO: log-prob, advantage", "tag state", "sampled tokens"),
    ("SFT: response", "tag state", "the default"),
    ("SFT: states_only", "state", "observation and prediction"),
    ("SFT: no_states", "tag", "the rest of the response"),
    ("SFT: act_obs", "tag state shown", "ActObs"),
)
"""Name of a mask, the kinds of tokens that it trains on, and what these are."""


def tokens() -> str:
    """One turn as tokens, and which of them each loss trains on."""
    step = WIDTH - 20 - 190
    size = step / len(TURN)
    parts = [
        text(
            "h", 10, 24, "One turn: the environment writes grey tokens, the model samples blue ones"
        ),
        text("t", 10, 60, "tokens"),
    ]
    for column, (word, kind) in enumerate(TURN):
        x = 190 + column * size
        source = "given" if kind in ("prompt", "shown") else "sampled"
        parts.append(
            f'<rect class="{source}" x="{x:.1f}" y="40" width="{size - 2:.1f}" height="30" rx="3"/>'
        )
        parts.append(text("c", round(x + size / 2 - 1, 1), 59, word))
    for row, (name, kinds, meaning) in enumerate(MASKS):
        y = 84 + row * 36
        parts += [text("m", 10, y + 12, name), text("t", 10, y + 27, meaning)]
        for column, (_, kind) in enumerate(TURN):
            state = "on" if kind in kinds.split() else "off"
            x = 190 + column * size
            parts.append(
                f'<rect class="{state}" x="{x:.1f}" y="{y}" width="{size - 2:.1f}" height="20" rx="3"/>'
            )
    return page("One turn as tokens, and the tokens that carry each loss", 84 + 36 * 5 + 4, parts)


def stage_life() -> str:
    """Lifecycle of a stage: lock, fingerprint, resume, steps, finish."""
    opened = [
        ("t", "Take the folder's lock."),
        ("t", "Compare the fingerprint:"),
        ("t", "other settings are refused,"),
        ("t", "by name."),
    ]
    resume = [
        ("t", "Finished: return the result."),
        ("t", "Checkpoint: load it and drop"),
        ("t", "lines after its step."),
        ("t", "Neither: start from scratch."),
    ]
    step = [
        ("t", "The loop samples, trains and"),
        ("t", "validates. A signal stops it"),
        ("t", "here, with a checkpoint."),
    ]
    commit = [
        ("t", "Write in this order: episodes,"),
        ("t", "the line of metrics, then the"),
        ("t", "checkpoint, if one is due."),
    ]
    finish = [
        ("t", "Write the result into"),
        ("m", "manifest.json"),
        ("t", "and release the lock."),
    ]
    parts = [
        box(10, 14, 240, 130, "Open", opened),
        box(292, 14, 240, 130, "Resume", resume),
        box(574, 14, 236, 130, "Step", step),
        box(574, 190, 236, 112, "Commit", commit),
        box(292, 190, 240, 112, "Finish", finish),
        arrow((250, 79), (290, 79)),
        arrow((532, 79), (572, 79)),
        arrow((650, 144), (650, 188)),
        arrow((740, 190), (740, 146)),
        text("t", 748, 172, "next step"),
        arrow((574, 246), (534, 246)),
        text("t", 10, 222, "After a kill at any moment, the same"),
        text("t", 10, 240, "command opens the folder again and"),
        text("t", 10, 258, "ends with the same bytes as a run"),
        text("t", 10, 276, "without the kill."),
    ]
    return page("The life cycle of a stage: open, resume, steps with commits, finish", 316, parts)


def drawings() -> Iterator[tuple[str, str]]:
    """File name and content of each drawing."""
    yield "stages.svg", stages()
    yield "tokens.svg", tokens()
    yield "stage-life.svg", stage_life()


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images")
    for name, svg in drawings():
        (folder / name).write_text(svg, encoding="utf-8")
