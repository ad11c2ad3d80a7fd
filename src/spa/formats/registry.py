"""Look up response formats by name, and call them."""

from collections.abc import Sequence

from spa.formats.base import Relabelled, ResponseFormat
from spa.formats.plans import Option
from spa.plugins import response_formats
from spa.types import ParsedResponse, Turn


def format_of(name: str) -> ResponseFormat:
    """Return the format with this name. Raises ValueError if there is none."""
    known = response_formats()
    if name not in known:
        raise ValueError(f"The response format must be one of {tuple(known)}, got {name!r}")
    return known[name]


def parse_response(
    text: str,
    *,
    mode: str,
    enable_think: bool = True,
    action_sep: str = "||",
    max_actions: int = 5,
    order: str = "prediction_first",
) -> ParsedResponse:
    """Parse a response in the format `order`; see `ResponseFormat.parse`."""
    return format_of(order).parse(
        text,
        mode=mode,
        enable_think=enable_think,
        action_sep=action_sep,
        max_actions=max_actions,
    )


def world_model_response(
    observation: str,
    thoughts: str,
    prediction: str,
    answer: str,
    *,
    order: str = "prediction_first",
    on: str = "\n",
) -> str:
    """Write a world-model response in the format `order`; see `ResponseFormat.write`."""
    return format_of(order).write(observation, thoughts, prediction, answer, on=on)


def relabel_turn(
    turn: Turn,
    *,
    action_sep: str,
    order: str = "prediction_first",
    options: Sequence[Option] = (),
) -> Relabelled:
    """Correct a turn's response in the format `order`: true states replace the model's. See
    `ResponseFormat.relabel`."""
    return format_of(order).relabel(turn, action_sep=action_sep, options=options)
