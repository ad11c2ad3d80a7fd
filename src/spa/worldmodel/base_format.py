"""The same conversations in the base format: no states in the responses, and prompts that ask for
none.

Fine-tuned on them, a model has seen the games, plans and answers that the world model saw, in a
format of its own, and has been told nothing about states: the baseline `vanilla_format`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spa.envs.base import StateText, TextEnv
from spa.prompts.render import Prompter, listed_actions
from spa.types import IMAGE, Episode, SFTExample, Turn
from spa.worldmodel.examples import assistant_positions


@dataclass(frozen=True, slots=True)
class Recorded:
    """An environment at a recorded turn, as far as prompts look at it: what never changes, and what
    was shown then: the state, and the message that it stood in."""

    env: TextEnv
    state: str
    message: str

    def state_text(self, kind: StateText) -> str:
        """The recorded state; it was written in the kind that the prompts show."""
        return self.state

    def legal_actions(self) -> tuple[str, ...]:
        """The recorded list, as one text."""
        # Where the prompt shows a picture, its mark takes the place of the state.
        listed = listed_actions(self.message, IMAGE if self.env.image() is not None else self.state)
        return (listed,) if listed else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def in_base_format(
    examples: Sequence[SFTExample], episode: Episode, prompter: Prompter, env: TextEnv
) -> list[SFTExample]:
    """The examples of an episode with the prompts of `prompter`, a base one, and responses of
    thoughts and answer alone.

    `env`: an environment of the episode's tag that has been reset to its puzzle.
    """
    if episode.seat is not None:
        env.look_as(episode.seat)
    told = [episode.messages[place - 1]["content"] for place in assistant_positions(episode)]
    views: list[Any] = [
        Recorded(env, turn.state, text) for turn, text in zip(episode.turns, told, strict=False)
    ]
    messages = [*prompter.first_messages(views[0])]
    for index, turn in enumerate(episode.turns[1:], start=1):
        before = episode.turns[index - 1]
        messages += [
            {"role": "assistant", "content": without_states(before, prompter)},
            prompter.next_message(
                views[index], turn=index + 1, actions_left=turn.actions_left, reward=before.reward
            ),
        ]
    return [
        replace(
            example,
            # System and first user message, then two messages for each turn before this one.
            prompt=tuple(messages[: 2 * example.turn + 2])
            if prompter.history
            else prompter.first_messages(
                views[example.turn],
                turn=example.turn + 1,
                actions_left=episode.turns[example.turn].actions_left,
            ),
            response=without_states(episode.turns[example.turn], prompter),
        )
        for example in examples
    ]


def without_states(turn: Turn, prompter: Prompter) -> str:
    """A turn's response as a base one: its thoughts, and the actions that were executed. Of a
    response in no good format only the actions that could be read are left. Where responses name a
    plan, its thoughts end with it."""
    thoughts = (turn.response.think or "") if turn.response.well_formed else ""
    actions = turn.executed if turn.response.well_formed else turn.response.actions
    thoughts = prompter.form.base_thoughts(thoughts, actions, turn.response.actions)
    answer = f"<answer>{f' {prompter.action_sep} '.join(actions)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer
