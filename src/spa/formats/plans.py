"""Plans in words: either one plan that ends the thoughts (`I do Left.`), or several imagined plans,
each with its predicted state, followed by the choice of one of them.

Several plans are plain text between the observation and the choice:

    I could do Left:
    (the state after it)
    I could do Down, then Up:
    (the state after them)
    I do Left.
"""

from collections.abc import Sequence

from spa.formats.blocks import between_states

Option = tuple[tuple[str, ...], str]
"""A plan (its actions), and the state that it is predicted to lead to."""

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
    """The options that the thoughts list, in order. Skips a heading without a state or without a
    plan."""
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


def plan_sentence(actions: Sequence[str]) -> str:
    """Announce actions in words: `I do Down, then Right.`"""
    return f"I do {', then '.join(actions)}."


def chosen_plan(actions: Sequence[str], state: str) -> str:
    """The thoughts of a `choose_plan` response that imagined one plan only."""
    return f"{imagined_plans([(tuple(actions), state)])}{plan_sentence(actions)} "


def with_plan(text: str, actions: Sequence[str], said: Sequence[str]) -> str:
    """Make the thoughts of a response, between observation and prediction, end with the plan of
    these actions (see `end_with_plan`). A response without both blocks is returned unchanged."""
    span = between_states(text)
    if span is None:
        return text
    start, end = span
    return f"{text[:start]}{end_with_plan(text[start:end], actions, said)} {text[end:]}"


def end_with_plan(thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
    """Make thoughts end with the plan `I do ..., then ....` of these actions. It replaces a plan at
    the end of the thoughts that consists of `actions`, actions in `said`, or single words. Other
    sentences stay."""
    thoughts = thoughts.rstrip()
    known = {name.casefold() for name in (*actions, *said)}
    # "I do Left, then Up." is a plan; "I do not know." is not, since "not know" is no action.
    before, begins, plan = thoughts.rpartition("I do ")
    names = plan.removesuffix(".").split(", then ")
    if (
        begins
        and plan.endswith(".")
        and all(name.casefold() in known or len(name.split()) == 1 for name in names)
    ):
        thoughts = before.rstrip()
    return f"{thoughts} {plan_sentence(actions)}"


def imagined(text: str) -> tuple[Option, ...]:
    """Return the plans and their states that a response lists between observation and prediction;
    empty if the response lacks one of these blocks."""
    span = between_states(text)
    return () if span is None else read_options(text[span[0] : span[1]])


def with_options(text: str, options: Sequence[Option], chosen: Sequence[str]) -> str:
    """Replace the thoughts of a response, between observation and prediction, by these plans with
    their states and the choice of `chosen`. A response without both blocks is returned unchanged.
    """
    span = between_states(text)
    if span is None:
        return text
    start, end = span
    return f"{text[:start]}{imagined_plans(options)}{plan_sentence(chosen)} {text[end:]}"
