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
"""A plan (its actions), and the predicted state after it."""

_COULD = "I could do "
_THEN = ", then "
_DO = "\nI do "


def imagined_plans(options: Sequence[Option]) -> str:
    """Write options as text: for each, a line with the plan, then the lines of its predicted
    state."""
    return "".join(f"\n{_COULD}{_THEN.join(plan)}:\n{state}" for plan, state in options) + "\n"


def without_options(thoughts: str) -> str:
    """Return the thoughts before the listed options and the choice."""
    return f"\n{thoughts}".partition(f"\n{_COULD}")[0].removeprefix("\n")


def read_options(thoughts: str) -> tuple[Option, ...]:
    """Parse the options that the thoughts list, in order. A heading without a state or a plan is
    skipped."""
    found: list[Option] = []
    # A plan must be at the start of a line. The newline added in front allows a plan at the start
    # of the text.
    _, *parts = f"\n{thoughts}\n".split(f"\n{_COULD}")
    for part in parts:
        plan, colon, state = part.partition(":\n")
        actions = tuple(action.strip() for action in plan.split(_THEN))
        # The last state ends where the choice begins.
        state = state.partition(_DO)[0].strip("\n")
        # A truncated response may end with a heading that has no state, such as "I could do Left".
        if colon and "\n" not in plan and all(actions) and state.strip():
            found.append((actions, state))
    return tuple(found)


def plan_sentence(actions: Sequence[str]) -> str:
    """Write actions as a sentence: `I do Down, then Right.`"""
    return f"I do {', then '.join(actions)}."


def chosen_plan(actions: Sequence[str], state: str) -> str:
    """Write the thoughts of a `choose_plan` response that lists one plan and chooses it."""
    return f"{imagined_plans([(tuple(actions), state)])}{plan_sentence(actions)} "


def with_plan(text: str, actions: Sequence[str], said: Sequence[str]) -> str:
    """Make the thoughts of a response, which lie between observation and prediction, end with the
    plan `actions` (see `end_with_plan`). A response without both blocks is returned unchanged."""
    span = between_states(text)
    if span is None:
        return text
    start, end = span
    return f"{text[:start]}{end_with_plan(text[start:end], actions, said)} {text[end:]}"


def end_with_plan(thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
    """Make thoughts end with the sentence `I do ..., then ....` for `actions`.

    If the thoughts already end with such a sentence, it is replaced, provided that each of its
    parts is in `actions`, is in `said`, or is a single word. Other sentences are kept.
    """
    thoughts = thoughts.rstrip()
    known = {name.casefold() for name in (*actions, *said)}
    # "I do Left, then Up." is a plan. "I do not know." is not, because "not know" is neither an
    # action nor a single word.
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
    """Return the plans and predicted states that a response lists between observation and
    prediction; empty if one of these blocks is missing."""
    span = between_states(text)
    return () if span is None else read_options(text[span[0] : span[1]])


def with_options(text: str, options: Sequence[Option], chosen: Sequence[str]) -> str:
    """Replace the thoughts of a response, which lie between observation and prediction, by
    `options` and the choice of the plan `chosen`. A response without both blocks is returned
    unchanged."""
    span = between_states(text)
    if span is None:
        return text
    start, end = span
    return f"{text[:start]}{imagined_plans(options)}{plan_sentence(chosen)} {text[end:]}"
