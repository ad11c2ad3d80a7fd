"""Planning by imagination, in evaluation and self-play: the engine around the engine, and what it imagined."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spa.config.schema import Config, ImagineConfig
from spa.engines.base import Engine
from spa.engines.imagine import Imagining, require_dynamics
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.tracking.encoding import dump_line, read_lines

IMAGINED = "imagined.jsonl"
"""What was imagined in self-play, beside its data."""


def imagining(
    cfg: Config, own: ImagineConfig, tags: Sequence[str], engine: Engine, template: ChatTemplate | None, record: Path
) -> Imagining:
    """The engine that plays the best of `engine`'s replies and notes in `record` what each was judged by.

    Raises ConfigError for environments whose states cannot be judged or copied.
    """
    setup.check_puzzles(cfg, tags, partial(require_dynamics, dynamics=own.dynamics, depth=own.depth))
    return Imagining(
        engine,
        n=own.n,
        dynamics=own.dynamics,
        spoil=own.spoil,
        state_text=cfg.state_text,
        max_actions=cfg.agent_proxy.max_actions_per_turn,
        depth=own.depth,
        width=own.width,
        max_turn=max(cfg.max_turn(tag) for tag in tags),
        template=template,
        record=_writer(record),
    )


def _writer(path: Path) -> Callable[[dict[str, Any]], None]:
    def write(line: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(dump_line(line))

    return write


def imagination(own: ImagineConfig, record: Path) -> dict[str, Any] | None:
    """What was imagined: tokens per episode over all replies, and how many imagined states were what would have come;
    None if nothing was. A turn that was played again counts once."""
    if own.n == 1 or not record.is_file():
        return None
    turns = {(line["episode_id"], line["turn"]): line for _, line in read_lines(record)}
    episodes = len({episode for episode, _ in turns})
    tokens = [sum(count or 0 for count in line["tokens"]) for line in turns.values()]
    right = [part["right"] for line in turns.values() for part in line["imagined"] if part["right"] is not None]
    chosen = [line["imagined"][line["chosen"]]["right"] for line in turns.values()]
    known = [value for value in chosen if value is not None]
    return {
        "n": own.n,
        "depth": own.depth,
        "dynamics": own.dynamics,
        "spoil": own.spoil,
        "tokens_per_episode": round(sum(tokens) / max(1, episodes), 2),
        "right": _share(right),
        "chosen_right": _share(known),
        "changed": _share([line["chosen"] != 0 for line in turns.values()]),
    }


def _share(values: list[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
