"""Rewrite recorded conversations in base format: responses contain no states, and prompts ask for
none.

The baseline `vanilla_format` is fine-tuned on the result. It sees the same games, plans and answers
as the world model, but no states.
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
    """A recorded turn that replaces the environment when prompts are rendered.

    `env` provides everything that does not change during the game. `state` is the state that the
    turn showed, and `message` is the message that contained it.
    """

    env: TextEnv
    state: str
    message: str

    def state_text(self, kind: StateText) -> str:
        """Return the recorded state, which is already in the form that prompts show."""
        return self.state

    def legal_actions(self) -> tuple[str, ...]:
        """Return the list of legal actions in the recorded message, as one text; empty if the
        message has none."""
        # If the prompt shows an image, its placeholder takes the place of the state.
        listed = listed_actions(self.message, IMAGE if self.env.image() is not None else self.state)
        return (listed,) if listed else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def in_base_format(
    examples: Sequence[SFTExample], episode: Episode, prompter: Prompter, env: TextEnv
) -> list[SFTExample]:
    """Convert the examples of an episode to base format. `prompter`, which is in base mode, renders
    the prompts. Responses contain only thoughts and answer.

    `env` is an environment of the episode's tag, reset to the episode's puzzle.
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
    """Return a turn's response in base format: its thoughts, and the executed actions. Of a
    malformed response, only the actions that could be parsed are kept. In a format that states
    plans in words, the thoughts end with the plan."""
    thoughts = (turn.response.think or "") if turn.response.well_formed else ""
    actions = turn.executed if turn.response.well_formed else turn.response.actions
    thoughts = prompter.form.base_thoughts(thoughts, actions, turn.response.actions)
    answer = f"<answer>{f' {prompter.action_sep} '.join(actions)}</answer>"
    return f"<think>{thoughts}</think>{answer}" if prompter.enable_think else answer
