"""Render an episode as static HTML for notebooks. All text is escaped, and the HTML has no scripts
and no external resources."""

from html import escape
from typing import Any

from spa.types import Episode
from spa_report.replay import replay

_CELL = "border:1px solid #999;width:1.7em;height:1.7em;text-align:center;font-family:monospace;padding:0"
_WRONG = "background:#fbd5d5;color:#900;font-weight:bold"
_BOARD = "display:inline-block;vertical-align:top;margin:0 1.2em .6em 0"


def episode_html(episode: Episode) -> str:
    """Return HTML that shows the actions, state, next state and predicted state of each turn. Wrong
    predictions are labelled ≠, and their wrong cells are highlighted."""
    # Drop the token ids, because showing them would need a tokenizer.
    shown = replay({**episode.to_json(), "token_ids": None})
    ending = "success" if shown["success"] else shown["stop"]
    result = f"{escape(ending)}, score {shown['score']:g}"
    head = f"<p><b>{escape(episode.tag)}</b>, seed {episode.puzzle_seed}: {result}</p>"
    error = f"<p>Error: {escape(shown['error'])}</p>" if shown["error"] else ""
    turns = "".join(_turn(number, turn) for number, turn in enumerate(shown["turns"], start=1))
    return f"<div>{head}{error}{turns}</div>"


def _turn(number: int, turn: dict[str, Any]) -> str:
    boards = [("state", turn["state"]), ("next state", turn["next_state"])]
    # Show an observation only if it is wrong; a correct one repeats the state next to it.
    if turn["observed"] is not None and turn["observation_wrong"]:
        boards.insert(1, ("observed ≠", turn["observed"]))
    if turn["predicted"] is not None:
        boards.append(
            ("predicted ≠" if turn["prediction_wrong"] else "predicted", turn["predicted"])
        )
    actions = ", ".join(
        escape(action["text"])
        + ("" if action["fate"] == "executed" else f" ({escape(action['fate'])})")
        for action in turn["actions"]
    )
    drawn = "".join(_board(title, board) for title, board in boards)
    response = (
        f"<details><summary>response</summary><pre>{escape(turn['response'])}</pre></details>"
    )
    head = f"Turn {number}: <b>{actions or 'no action'}</b>, reward {turn['reward']:g}"
    return f"<div><p>{head}</p>{drawn}{response}</div>"


def _board(title: str, board: dict[str, Any]) -> str:
    """Render a board as a table, or as words if the state is not a grid."""
    rows = "".join(
        f"<tr>{''.join(_cell(text, differs) for text, differs in row)}</tr>"
        for row in board["rows"]
    )
    words = " ".join(
        f'<span style="{_WRONG}">{escape(text)}</span>' if differs else escape(text)
        for text, differs in board["words"]
    )
    grid = (
        f'<table style="border-collapse:collapse">{rows}</table>' if rows else f"<div>{words}</div>"
    )
    return f'<div style="{_BOARD}"><small>{escape(title)}</small>{grid}</div>'


def _cell(text: str, differs: int) -> str:
    style = f"{_CELL};{_WRONG}" if differs else _CELL
    return f'<td style="{style}">{escape(text)}</td>'
