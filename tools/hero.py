"""The README's picture: an episode of a finished run as an animated SVG.

    python tools/hero.py RUN EPISODE [--output docs/images/hero.svg]

RUN is a folder like `runs/demo`, EPISODE the id of an episode of the last validation after PPO. Each
turn has two frames: the state with the response, then the state that the actions led to, beside the
predicted one. Tokens are shaded by log-prob. No scripts and no fonts are embedded, so that GitHub
shows it; without animation the last frame is shown.
"""

import argparse
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from spa.errors import DataError
from spa.run.files import write_atomic
from spa_report.index import Place, read_episode
from spa_report.reading import StageFolder, heads, last_validation, open_run
from spa_report.replay import find_tokenizer, replay
from spa_report.results import arm_name

WIDTH = 830
HEIGHT = 300
CELL = 46
CHARACTER = 7.3
LINE = 20
COLUMNS = 44
SECONDS = 2.2
"""Pixels per cell, character and line; characters per line of the response; seconds per frame."""
ICONS = {"P": "♟", "G": "⚑", "O": "●"}
STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 14px; --page: #ffffff; --text: #16191f; --soft: #566070;
  --line: #cfd4dc; --cell: #f5f6f8; --hole: #5b6470; --goal: #00664b; --player: #0a5fa8; --bad: #b34400;
  --bad-back: #ffe3cf; --blue: #0072b2; }
@media (prefers-color-scheme: dark) { svg { --page: #14171c; --text: #e8ebf0; --soft: #a4afbf; --line: #3a424e;
  --cell: #262c35; --hole: #98a3b3; --goal: #4fd0a5; --player: #7dbdf5; --bad: #ff9e5e; --bad-back: #5b2c0c;
  --blue: #56b4e9; } }
text { fill: var(--text); } .soft { fill: var(--soft); } .good { fill: var(--goal); font-weight: 600; }
.bad { fill: var(--bad); font-weight: 600; } .head { font-size: 16px; font-weight: 600; }
.page { fill: var(--page); stroke: var(--line); } .cell { fill: var(--cell); stroke: var(--line); }
.differs { fill: var(--bad-back); stroke: var(--bad); stroke-width: 2; }
.icon { font-size: 25px; text-anchor: middle; } .many { font-size: 19px; }
.P { fill: var(--player); } .G { fill: var(--goal); }
.O { fill: var(--hole); } .token { font: 12px ui-monospace, Menlo, Consolas, monospace; white-space: pre; }
.shade { fill: var(--blue); }
"""


def find_episode(run: Path, name: str) -> tuple[dict[str, Any], StageFolder]:
    """The replay of an episode of a last validation after PPO, and its stage. Raises DataError if
    there is none."""
    for stage in open_run(run).find("ppo"):
        file = last_validation(stage)
        for start, head in heads(file.path) if file else ():
            if file and head.get("episode_id") == name:
                episode = read_episode(Place(file.path, start))
                if episode:
                    return replay(episode, tokenizer=find_tokenizer(stage.path, run)), stage
    raise DataError(f"{run}: no last validation after PPO has the episode {name}")


def board(view: dict[str, Any], x: float, y: float, title: str, mark: str = "") -> Iterator[str]:
    """A grid of cells under a title; `mark` is `good` or `bad` for a prediction that is compared."""
    verdict = {"good": "✓", "bad": "≠"}.get(mark, "")
    yield f'<text x="{x}" y="{y - 10}">{title} <tspan class="{mark}">{verdict}</tspan></text>'
    for row, cells in enumerate(view["rows"]):
        for column, (text, differs) in enumerate(cells):
            left = x + column * CELL
            top = y + row * CELL
            kind = "differs" if differs and mark else "cell"
            size = f'width="{CELL - 3}" height="{CELL - 3}" rx="4"'
            yield f'<rect class="{kind}" x="{left}" y="{top}" {size}/>'
            if text != "·":
                signs = "".join(ICONS.get(sign, sign) for sign in str(text))
                middle = f'x="{left + CELL / 2 - 1.5}" y="{top + CELL / 2 + 7}"'
                many = " many" if len(signs) > 1 else ""
                yield f'<text class="icon {text[0]}{many}" {middle}>{escape(signs)}</text>'


def response(turn: dict[str, Any], x: float, y: float) -> Iterator[str]:
    """The sampled tokens, wrapped, each shaded by its log-prob."""
    tokens = turn["tokens"]
    line = 0
    column = 0
    for text, sampled, logprob in zip(
        tokens["text"], tokens["sampled"], tokens["numbers"]["logprob"], strict=True
    ):
        if not sampled:
            continue
        for part_number, part in enumerate(text.split("\n")):
            if part_number or column + len(part) > COLUMNS:
                line += 1
                column = 0
            if not part.strip() and not column:
                continue
            left = x + column * CHARACTER
            top = y + line * LINE
            width = len(part) * CHARACTER
            shade = min(0.65, abs(logprob) / 4)
            if shade > 0.02:
                size = f'width="{width:.1f}" height="17" rx="2" fill-opacity="{shade:.2f}"'
                yield f'<rect class="shade" x="{left:.1f}" y="{top - 13:.1f}" {size}/>'
            fit = f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
            place = f'x="{left:.1f}" y="{top}"'
            yield f'<text class="token" {place} {fit}>{escape(part)}</text>'
            column += len(part)


def frames(view: dict[str, Any], label: str) -> Iterator[list[str]]:
    """Two frames per turn: before and after its actions."""
    turns = view["turns"]
    for index, turn in enumerate(turns, 1):
        actions = ", ".join(action["text"] for action in turn["actions"]) or "no action"
        last = index == len(turns)
        for after in (False, True):
            end = "success" if view["success"] else view["stop"]
            said = f"actions: {actions}" + (f" → {end}" if last and after else "")
            words = [
                f'<text class="head" x="24" y="38">Turn {index} of {len(turns)} · {said}</text>',
                f'<text class="soft" x="24" y="60">{escape(label)}</text>',
            ]
            words += board(turn["state"], 24, 108, "True state")
            words += [
                '<text x="196" y="98">Response <tspan class="soft">'
                "(darker: lower log-prob)</tspan></text>"
            ]
            words += response(turn, 196, 124)
            if turn["predicted"]:
                mark = "bad" if turn["prediction_wrong"] else "good"
                words += board(turn["predicted"], 534, 108, "Predicted next", mark if after else "")
            if after:
                words += board(turn["next_state"], 678, 108, "True next")
            yield words


def hero(view: dict[str, Any], label: str) -> str:
    """The SVG of an episode."""
    shown = list(frames(view, label))
    share = 100 / len(shown)
    rules = []
    for index in range(len(shown)):
        times = {0: "hidden", share * index: "visible", share * (index + 1): "hidden"}
        moments = " ".join(f"{at:.2f}% {{ visibility: {what}; }}" for at, what in times.items())
        rules.append(
            f".f{index} {{ animation: f{index} {SECONDS * len(shown):.1f}s step-end infinite; }}"
        )
        rules.append(f"@keyframes f{index} {{ {moments} }}")
    moving = "@media (prefers-reduced-motion: no-preference) { " + "\n".join(rules) + " }"
    groups = []
    for index, parts in enumerate(shown):
        seen = "visible" if index + 1 == len(shown) else "hidden"
        groups.append(f'<g class="f{index}" visibility="{seen}">{"".join(parts)}</g>')
    title = "An episode after PPO: true states, the response and predicted states, turn by turn"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" role="img" aria-label="{title}">',
            f"<title>{title}</title><style>{STYLE}{moving}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            *groups,
            "</svg>\n",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the picture. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw an episode as an animated SVG.")
    parser.add_argument("run", type=Path)
    parser.add_argument("episode")
    parser.add_argument("--output", type=Path, default=Path("docs/images/hero.svg"))
    options = parser.parse_args(arguments)
    view, stage = find_episode(options.run, options.episode)
    label = f"{view['facts']['tag']}, held-out puzzle, {arm_name(stage.arm) or options.run.name} after PPO"
    write_atomic(options.output, [hero(view, f"{label}, episode {view['id']}")])
    print(f"{options.output}: {options.output.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
