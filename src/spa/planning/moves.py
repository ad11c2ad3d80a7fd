"""Prompts and examples for single moves, which take only a few tokens. A model learns the moves
from recorded play. A search program then queries the model.

The prompt shows one state and asks for a move. The response is an action and the key of the state
that it leads to, written as in searches: `<think>Left30`. Some games also write what the move
passes on its way: `<think>Left23c>13` (`TextEnv.way`). A query is the prompt followed by the
beginning of the response: `<think>Left`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import get_args

import numpy as np

from spa.envs.base import StateText, TextEnv
from spa.errors import ConfigError
from spa.formats.search import Transitions, explore, target
from spa.prompts.render import STATE, SYSTEM
from spa.prompts.template import ChatTemplate
from spa.types import Message, Prompt, SFTExample

PREFILL = "<think>"
MIN_TOKENS = 8
"""Smallest token limit of an answer."""
_NO_IDS = np.zeros(0, dtype=np.int32)


def require_names(env: TextEnv, tag: str, shown: StateText) -> None:
    """Raise ConfigError if the game cannot be searched with a model's predictions.

    For each state of this puzzle, the game must be able to read the key and the outcome from the
    prompt's text of the state. It must also render the same text from the key.
    """
    try:
        true, copies = explore(env)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"generate.policy=search cannot search the states of {tag}: {error}"
        ) from error
    if leaves_out_actions(copies.values()):
        raise ConfigError(
            f"generate.search.dynamics=model cannot search {tag}: legal_actions leaves out actions, and which ones is "
            "unknown in predicted states. Return all of action_names, or set generate.search.dynamics=simulator."
        )
    readable = readable_modes(env, true, copies)
    if shown in readable:
        return
    way_out = (
        f"Set state_text to {' or '.join(readable)}"
        if readable
        else "Define TextEnv.key_of_text, text_of_key and outcome_of_text"
    )
    raise ConfigError(
        f"generate.search.dynamics=model cannot read the states of {tag} from state_text={shown}. {way_out}, "
        "or set generate.search.dynamics=simulator."
    )


def leaves_out_actions(states: Iterable[TextEnv]) -> bool:
    """Return whether some action is illegal in one of these states."""
    return any(set(state.legal_actions()) != set(state.action_names()) for state in states)


def readable_modes(
    env: TextEnv, true: Transitions, copies: Mapping[str, TextEnv]
) -> list[StateText]:
    """Return the values of `state_text` that a search with a learned model can use. With these, the
    game can read the key and the outcome of every state in `true` and `copies` from its text. It
    can also render the same text from the key."""
    states = [*copies.values()]
    # `copies` lacks the states that end a game.
    for key, successors in true.items():
        for name, _, outcome in successors:
            if outcome:
                last = copies[key].clone()
                action = last.to_action(name)
                assert action is not None  # `explore` has taken it
                last.step(action)
                states.append(last)

    def reads(state: TextEnv, mode: StateText) -> bool:
        key, text = state.state_key() or "", state.state_text(mode)
        return (
            env.key_of_text(text) == key
            and env.text_of_key(env.state_text(mode), key) == text
            and env.outcome_of_text(text) == state.state_outcome()
        )

    return [mode for mode in get_args(StateText) if all(reads(state, mode) for state in states)]


def move_messages(env: TextEnv, state: str) -> tuple[Message, ...]:
    """Return the prompt for a move in `state`, the text of a state of the same game as `env`."""
    one, many = env.state_key_format
    ask = f"Reply only with <think>[an action and the {one} that it leads to; {many}]"
    return (
        {"role": "system", "content": SYSTEM},
        {
            "role": "user",
            "content": f"Actions: {', '.join(env.action_names())}.\n{ask}\n\n{STATE}{state}",
        },
    )


def move_examples(examples: Iterable[SFTExample], env: TextEnv) -> list[SFTExample]:
    """Convert examples of recorded play to examples of single moves. Skips turns with several
    actions, and turns with a state that has no key."""
    moves = list[SFTExample]()
    for example in examples:
        before, after = env.key_of_text(example.state), env.key_of_text(example.next_state)
        # A turn of several actions does not show the states in between.
        if len(example.executed) == 1 and before is not None and after is not None:
            action = example.executed[0]
            response = f"{PREFILL}{action}{target(env.way(before, action), after)}"
            moves.append(
                replace(example, prompt=move_messages(env, example.state), response=response)
            )
    return moves


def answer_tokens(starts: Iterable[str], template: ChatTemplate | None) -> int:
    """Return the token limit for the target of a move: four times the length of the longest key in
    `starts`, but at least `MIN_TOKENS`."""
    if template is None:
        return MIN_TOKENS
    longest = max(
        (len(template.response_ids(f"{PREFILL}{key}", PREFILL)) for key in starts), default=0
    )
    return max(MIN_TOKENS, 4 * longest)


def move_question(
    env: TextEnv, state: str, action: str, template: ChatTemplate | None, *, number: int
) -> Prompt:
    """Return the prompt that asks where `action` leads in `state`. `number` must be unique among
    the prompts of one call of the engine."""
    messages = move_messages(env, state)
    # The prompt includes the action as the beginning of the response, so that the model can be
    # queried for every action.
    begun = f"{PREFILL}{action}"
    ids = _NO_IDS
    if template is not None:
        said = template.response_tokens(begun, PREFILL)[0]
        ids = np.asarray([*template.start(messages, PREFILL), *said], dtype=np.int32)
    return Prompt(
        episode_id=f"move/{number}",
        messages=messages,
        token_ids=ids,
        prefill=begun,
        seed=number,
        continued=False,
    )
