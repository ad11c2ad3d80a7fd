"""Several imagined plans in a response, each with its predicted state, before one of them is
chosen.

They stand between the observation and the choice as plain text:

    I could do Left:
    (the state after it)
    I could do Down, then Up:
    (the state after them)
    I do Left.
"""

from collections.abc import Sequence

Option = tuple[tuple[str, ...], str]
"""A plan, and the state that it is imagined to lead to."""

_COULD = "I could do "
_THEN = ", then "
_DO = "\nI do "


def imagined_plans(options: Sequence[Option]) -> str:
    """The options as text, on lines of their own."""
    return "".join(f"\n{_COULD}{_THEN.join(plan)}:\n{state}" for plan, state in options) + "\n"


def without_options(thoughts: str) -> str:
    """The thoughts before the options and the choice."""
    return f"\n{thoughts}".partition(f"\n{_COULD}")[0].removeprefix("\n")


def read_options(thoughts: str) -> tuple[Option, ...]:
    """The options that the thoughts list, in their order. What is no option is left out: a head
    without a state, or without a plan."""
    found: list[Option] = []
    # A plan must begin a line; the newline in front lets the first plan begin the text.
    _, *parts = f"\n{thoughts}\n".split(f"\n{_COULD}")
    for part in parts:
        plan, colon, state = part.partition(":\n")
        actions = tuple(action.strip() for action in plan.split(_THEN))
        # The last state ends where the choice begins.
        state = state.partition(_DO)[0].strip("\n")
        # A response that was cut off leaves a head such as "I could do Left" without a state.
        if colon and "\n" not in plan and all(actions) and state.strip():
            found.append((actions, state))
    return tuple(found)
