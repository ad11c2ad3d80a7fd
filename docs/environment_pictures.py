"""Draw one picture per environment into docs/images, and refresh the card table of docs/environments.md.

    python docs/environment_pictures.py

Every picture is a state of the environment itself: seed 3 of the tag.
"""

import re
import struct
import textwrap
import zlib
from html import escape
from pathlib import Path

import numpy as np

from spa.config.load import load_config
from spa.envs.base import TextEnv
from spa.envs.cards import cards, share
from spa.envs.registry import make_env
from spa.tables import Table

HERE = Path(__file__).parent
INK, PAPER, LINE = "#26262e", "#f5f5f0", "#b8b4a6"
CUBE = {
    "W": "#f5f5f0",
    "O": "#e8853a",
    "G": "#54a050",
    "R": "#d64045",
    "B": "#3465b0",
    "Y": "#efce4a",
}
TILES = {0: "#ded3b8", 2: "#f0e4cf", 4: "#efd9b0"}


def main() -> None:
    """Write all pictures and the table."""
    specs = load_config("base").custom_envs
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    for tag in ("SimpleSokoban", "Sokoban2Boxes", "HarderSokoban", "FrozenLake"):
        spec = specs[tag]
        env = make_env(spec.env_type, {**(spec.env_config or {}), "render_mode": "rgb_array"})
        env.reset(seed=3)
        frame = env.render()
        assert isinstance(frame, np.ndarray)
        (images / f"env-{tag}.png").write_bytes(png(frame.repeat(2, axis=0).repeat(2, axis=1)))
    drawers = {"Sudoku": sudoku, "2048": tiles, "RubiksCube": cube}
    for tag in ("Sudoku", "2048", "RubiksCube", "Bandit", "Countdown", "MetamathQA", "WebShop"):
        env = make_env(specs[tag].env_type, specs[tag].env_config)
        env.reset(seed=3)
        drawing = drawers.get(tag, words)(env)
        (images / f"env-{tag}.svg").write_text(drawing, encoding="utf-8")
    page = HERE / "environments.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(
        re.sub(r"(?s)<!-- cards -->.*<!-- /cards -->", lambda _: table(), text), encoding="utf-8"
    )


def table() -> str:
    """The card table in Markdown, between its markers."""
    columns = ("tag", "cap", "optimum", "found by", "random", "walk", "look-ahead", "random score")
    rows = [
        (
            card.tag,
            str(card.max_actions_per_traj),
            "not known" if card.optimum is None else f"{card.optimum:.1%}",
            card.optimum_by,
            f"{card.random_success:.1%}",
            share(card.walk_success),
            share(card.look_ahead_success),
            f"{card.random_score:,.2f}",
        )
        for card in cards().values()
    ]
    made = Table(columns, rows, right=(1, 2, 4, 5, 6, 7)).markdown()
    return f"<!-- cards -->\n{made}\n<!-- /cards -->"


def png(image: np.ndarray) -> bytes:
    """uint8 [height, width, 3] as a PNG file."""
    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    )


def svg(width: int, height: int, parts: list[str]) -> str:
    """An SVG file with a paper background."""
    frame = f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}" stroke="{LINE}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return "\n".join([head, frame, *parts, "</svg>"]) + "\n"


def box(x: float, y: float, side: float, fill: str) -> str:
    """A filled square."""
    return f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{fill}" stroke="{INK}" stroke-width="0.8"/>'


def label(x: float, y: float, text: str, size: int = 16, weight: str = "normal") -> str:
    """A centred text."""
    style = f'font-family="sans-serif" font-size="{size}" font-weight="{weight}" fill="{INK}" text-anchor="middle"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def words(env: TextEnv) -> str:
    """The state as text."""
    lines = [
        part
        for line in env.state_text("grid").split("\n")
        for part in textwrap.wrap(line, 56) or [""]
    ]
    style = f'font-family="monospace" font-size="13" fill="{INK}" xml:space="preserve"'
    parts = [
        f'<text x="14" y="{24 + 18 * row}" {style}>{escape(line)}</text>'
        for row, line in enumerate(lines)
    ]
    return svg(480, 18 * len(lines) + 18, parts)


def sudoku(env: TextEnv) -> str:
    """Given digits on the board, thick lines around the blocks."""
    rows = [row.split() for row in env.puzzle_text().removeprefix("|").split("|")]
    parts, base = [], round(len(rows) ** 0.5)
    for r, row in enumerate(rows):
        for c, digit in enumerate(row):
            parts.append(box(12 + 36 * c, 12 + 36 * r, 36, PAPER))
            if digit != ".":
                parts.append(label(30 + 36 * c, 36 + 36 * r, digit, weight="bold"))
    side = 36 * len(rows)
    for line in range(0, len(rows) + 1, base):
        at = 12 + 36 * line
        parts.append(
            f'<path d="M{at} 12v{side}M12 {at}h{side}" stroke="{INK}" stroke-width="2.5" fill="none"/>'
        )
    return svg(side + 24, side + 24, parts)


def tiles(env: TextEnv) -> str:
    """The numbered tiles."""
    parts = []
    rows = [line.split() for line in env.state_text("grid").split("\n")]
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            value = int(cell) if cell.isdigit() else 0
            parts.append(box(12 + 44 * c, 12 + 44 * r, 40, TILES.get(value, "#e0a458")))
            if value:
                parts.append(label(32 + 44 * c, 38 + 44 * r, str(value), weight="bold"))
    return svg(44 * len(rows) + 20, 44 * len(rows) + 20, parts)


def cube(env: TextEnv) -> str:
    """The cube unfolded around its front."""
    places = {"U": (1, 0), "L": (0, 1), "F": (1, 1), "R": (2, 1), "B": (3, 1), "D": (1, 2)}
    parts = []
    for line in env.state_text("grid").split("\n"):
        face, stickers = line.split("(")[1][0], line.split(":")[1].split()
        for row, pair in enumerate(stickers):
            for col, colour in enumerate(pair):
                x, y = places[face]
                parts.append(box(12 + 52 * x + 24 * col, 12 + 52 * y + 24 * row, 24, CUBE[colour]))
    return svg(52 * 4 + 20, 52 * 3 + 20, parts)


if __name__ == "__main__":
    main()
