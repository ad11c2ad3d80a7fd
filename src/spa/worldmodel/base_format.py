"""Rewrite recorded conversations in base format: responses contain no states, and prompts ask for
none.

A model fine-tuned on them has seen the same games, plans and answers as the world model, in its own
format, but no states: the baseline `vanilla_format`.
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
    """A recorded turn that takes the place of an environment when prompts are made. env: provides
    everything that does not change during the game. state: the state that the turn showed. message:
    the message that contained this state."""

    env: TextEnv
    state: str
    message: str

    def state_text(self, kind: StateText) -> str:
        """The recorded state, which is already in the rendering that the prompts show."""
        return self.state

    def legal_actions(self) -> tuple[str, ...]:
        """The list of legal actions in the recorded message, as one text; empty if it has none."""
        # If the prompt shows an image, its placeholder takes the place of the state.
        listed = listed_actions(self.message, IMAGE if self.env.image() is not None else self.state)
        return (listed,) if listed else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def in_base_format(
    examples: Sequence[SFTExample], episode: Episode, prompter: Prompter, env: TextEnv
) -> list[SFTExample]:
    """The examples of an episode in base format: with prompts of `prompter`, which is in base mode,
    and with responses that contain only thoughts and answer.

    env: an environment of the episode's tag, reset to its puzzle.
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
    """A turn's response in base format: its thoughts, and the actions that were executed. Of a
    malformed response, only the readable actions are kept. If the format names plans, the thoughts
    end with the plan."""
    thoughts = (turn.response.think or "") if turn.response.well_formed else ""
    actions = turn.executed if turn.response.well_formed else turn.response.actions
    thoughts = prompter.form.base_thoughts(thoughts, actions, turn.response.actions)
    answer = f"<answer>{f' {prompter.action_sep} '.join(actions)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer
