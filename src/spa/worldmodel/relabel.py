"""Ground truth into a response: the states that the model wrote are replaced by the states that
there were."""

from collections.abc import Sequence
from dataclasses import dataclass

from spa.prompts.formats import FORMATS
from spa.prompts.imagined import Option, imagined_plans, read_options
from spa.prompts.parse import between_states, find_block, parse_reply
from spa.prompts.render import plan_sentence
from spa.types import ResponseFormat, Turn

MALFORMED = "malformed"
NO_STATE_BLOCKS = "no_state_blocks"
NOTHING_EXECUTED = "nothing_executed"
NO_NEXT_STATE = "no_next_state"
UNWRITABLE = "state_or_action_holds_format_tags"


@dataclass(frozen=True, slots=True)
class Relabelled:
    """A corrected response, or None and the reason why there is none. `reason` is empty when there
    is a text."""

    text: str | None
    reason: str = ""


def relabel_turn(
    turn: Turn,
    *,
    action_sep: str,
    order: ResponseFormat = "prediction_first",
    options: Sequence[Option] = (),
) -> Relabelled:
    """The turn's response with true states and executed actions (stage 1 of arXiv 2510.15047).

    The observation becomes `turn.target`, the prediction `turn.next_target` (the state after all
    executed actions), the answer the executed actions. Thoughts stay byte for byte. With
    `order` "plan_first" they end with the executed actions by name. With "choose_plan" they are
    `options` (by default the executed actions alone, with the state that they led to), of which
    the executed actions are chosen. Text outside the blocks goes. Everything is slicing, so no
    state is read as a pattern. The result is parsed again, and given up if it would not say exactly
    the truth.
    """
    text = turn.reply_text
    spec = FORMATS[order]
    if not turn.reply.well_formed:
        return Relabelled(None, MALFORMED)
    if find_block(text, "observation") is None or (
        spec.predicts and find_block(text, "prediction") is None
    ):
        return Relabelled(None, NO_STATE_BLOCKS)
    most = len(turn.reply.actions)
    if not parse_reply(
        text, mode="add_worldmodel", action_sep=action_sep, max_actions=most, order=order
    ).well_formed:
        # The response is well formed in the format that it was played in, such as that of base
        # mode, but not in this one.
        return Relabelled(None, MALFORMED)
    if not turn.executed:
        return Relabelled(None, NOTHING_EXECUTED)
    if spec.predicts and not turn.next_target.strip():
        return Relabelled(None, NO_NEXT_STATE)
    if spec.predicts:
        text = replace_block(text, "prediction", _on_own_lines(turn.next_target))
    options = options or [(turn.executed, turn.next_target)]
    if spec.names_plan:
        text = with_plan(text, turn.executed, turn.reply.actions)
    if spec.lists_plans:
        text = with_options(text, options, turn.executed)
    text = replace_block(text, "observation", _on_own_lines(turn.target))
    text = replace_block(text, "answer", f" {action_sep} ".join(turn.executed))
    last = "</prediction>" if spec.prediction == "after_answer" else "</answer>"
    text = text[text.find("<think>") : text.rfind(last) + len(last)]
    # For example, a state that holds a tag of the format ends its own block early.
    if not _says_the_truth(text, turn, action_sep, order, options):
        return Relabelled(None, UNWRITABLE)
    return Relabelled(text)


def with_plan(text: str, actions: Sequence[str], said: Sequence[str]) -> str:
    """A response whose thoughts between observation and prediction end with the plan `I do ...,
    then ....` of these actions (see `end_with_plan`)."""
    span = between_states(text)
    if span is None:
        return text
    start, end = span
    return f"{text[:start]}{end_with_plan(text[start:end], actions, said)} {text[end:]}"


def end_with_plan(thoughts: str, actions: Sequence[str], said: Sequence[str]) -> str:
    """Thoughts that end with the plan `I do ..., then ....` of these actions, in the place of a
    plan that they ended with before. That is one of actions that the response `said`, or of single
    words; other sentences stay."""
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
    """The plans with their states between a response's observation and prediction; none if it does
    not have both."""
    span = between_states(text)
    return () if span is None else read_options(text[span[0] : span[1]])


def with_options(text: str, options: Sequence[Option], chosen: Sequence[str]) -> str:
    """A response whose thoughts between observation and prediction are these plans with their
    states, and the choice."""
    span = between_states(text)
    if span is None:
        return text
    start, end = span
    return f"{text[:start]}{imagined_plans(options)}{plan_sentence(chosen)} {text[end:]}"


def replace_block(text: str, tag: str, content: str) -> str:
    """`text` with the content of its only `<tag>` block replaced; unchanged if there is not exactly
    one."""
    span = find_block(text, tag)
    return text if span is None else text[: span[0]] + content + text[span[1] :]


def replace_state(text: str, tag: str, state: str) -> str:
    """`text` with the state inside its only `<tag>` block replaced, on lines of its own as
    everywhere in the data."""
    return replace_block(text, tag, _on_own_lines(state))


def _on_own_lines(state: str) -> str:
    return f"\n{state}\n"


def _says_the_truth(
    text: str, turn: Turn, action_sep: str, order: ResponseFormat, options: Sequence[Option]
) -> bool:
    # One more than was executed, so that parsing reveals a surplus action.
    limit = len(turn.executed) + 1
    reply = parse_reply(
        text, mode="add_worldmodel", action_sep=action_sep, max_actions=limit, order=order
    )
    foretold = not FORMATS[order].predicts or reply.prediction == turn.next_target.strip()
    if FORMATS[order].lists_plans and reply.options != tuple(
        (tuple(plan), state.strip("\n")) for plan, state in options
    ):
        return False
    return (
        reply.well_formed
        and reply.observation == turn.target.strip()
        and foretold
        and reply.actions == turn.executed
    )
