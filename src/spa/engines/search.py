"""Look ahead action by action: the model is asked what each action would lead to, and a way to the goal is played.

`spa.engines.imagine` judges the replies that the model happens to draw. Here nothing is left to luck: in the real state
and in every predicted one that is new, each action of the game is named for the model, whose reply is begun up to the
prediction (the state as observation, then `I do Down. <prediction>`), so that it writes what it knows and no action is
missed or asked for twice. The search is breadth first and ends where a predicted state shows the goal. The way there is
played in turns of as many actions as a turn may have, each reply begun in the same manner with its plan. Where no way
is found, or where a beginning would leave no room for the longest reply, the model replies by itself.

What a reply is begun with is no sampled token and has log-prob 0. Predictions that are only looked at are greedy:
the most probable next state is asked for, not a draw.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spa.engines.imagine import GOAL, Imagined, Imagining, Place, Search, line_of, same, way_to, whole
from spa.envs.limits import MAKING_S, EnvFault, boundary
from spa.prompts.render import plan_sentence, world_model_reply
from spa.types import Completion, Prompt, SamplingParams

_FORESEES = "<prediction>\n"


class Searching(Imagining):
    """`engine`, asked what every action leads to; `depth` counts actions. The other arguments are those of `Imagining`;
    `n` is without effect, and `template` must be given, since a reply is begun in tokens."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """The reply to each prompt that goes the way that was found, or the engine's own where none was."""
        searches = [Search(prompt) for prompt in prompts]
        ways = [self._kept_way(search) for search in searches]
        lost = [search for search, way in zip(searches, ways, strict=True) if not way and not search.fault]
        self.look_ahead(lost, replace(sampling, temperature=0.0))
        ways = [way or _found(search) for search, way in zip(searches, ways, strict=True)]
        questions = [self._begun(search, way) for search, way in zip(searches, ways, strict=True)]
        replies = iter(self.ask([question for question in questions if question is not None], sampling))
        return [
            search.failed() if question is None else self._play(search, way, question, next(replies))
            for search, way, question in zip(searches, ways, questions, strict=True)
        ]

    def questions(self, place: Place) -> list[Prompt]:
        """Every action of the game, by name; none if there is no room for all of them."""
        prompt, state = place.prompt, self._state(place)
        asked = [
            replace(self._named(prompt, state, (action,)), episode_id=f"{prompt.episode_id}#{action}", turns_left=1)
            for action in prompt.context.action_names()
        ]
        return asked if all(map(self._fits, asked)) else []

    def turns_ahead(self, prompt: Prompt) -> int:
        """The actions that the turns left may hold."""
        return (prompt.turns_left or 1) * self.max_actions

    def _state(self, place: Place) -> str:
        if place.before is not None:
            return (place.before.state or "").strip()
        return place.prompt.context.state_text(self.state_text)

    def _named(self, prompt: Prompt, state: str, actions: Sequence[str]) -> Prompt:
        """The prompt with a reply that is begun up to the prediction of what these actions lead to."""
        text = world_model_reply(state, f" {plan_sentence(actions)} ", "", "", order="plan_first")
        begun = text[: text.index(_FORESEES) + len(_FORESEES)]
        assert self.template is not None
        ids = np.asarray(self.template.reply_tokens(begun, prompt.opener)[0], dtype=np.int32)
        return replace(prompt, opener=begun, token_ids=np.concatenate([prompt.token_ids, ids]))

    def _kept_way(self, search: Search) -> list[Imagined]:
        """What is left of the way that the episode is on; empty if it is on none, or if that has led elsewhere."""
        way = self._ways.pop(search.prompt.episode_id, [])
        try:
            with boundary("imagining", MAKING_S):
                here = search.prompt.context.state_text(self.state_text)
        except EnvFault as error:
            search.fault = str(error)
            return []
        return way if way and way[0].before is not None and same(way[0].before.state, here) else []

    def _begun(self, search: Search, way: Sequence[Imagined]) -> Prompt | None:
        """What the engine is asked for the reply that is played; None if the game has failed."""
        if search.fault:
            return None
        if not way:
            return search.prompt
        state = self._state(Place(prompt=search.prompt, env=None))
        named = self._named(search.prompt, state, [name for each in self._turn(way) for name in each.parsed.actions])
        return named if self._fits(named) else search.prompt

    def _fits(self, question: Prompt) -> bool:
        """Whether a reply that is begun leaves room for as many tokens as one that is not."""
        return self.max_prompt is None or len(question.token_ids) <= self.max_prompt

    def _turn(self, way: Sequence[Imagined]) -> list[Imagined]:
        """The part of a way that fits into one turn."""
        part = [way[0]]
        for each in way[1:]:
            if sum(len(taken.parsed.actions) for taken in [*part, each]) > self.max_actions:
                break
            part.append(each)
        return part

    def _play(self, search: Search, way: list[Imagined], question: Prompt, reply: Completion) -> Completion:
        """The reply as the episode has it, with what it was begun with; what was imagined is recorded."""
        prompt = search.prompt
        way = [] if question is prompt else way  # its beginning may not fit
        text = whole(question, prompt, reply)
        try:
            with boundary("imagining", MAKING_S):
                played = self.imagine(Place(prompt=prompt, env=prompt.context), [text])
        except EnvFault as error:
            search.fault = str(error)
            return search.failed()
        if self.keep and (rest := way[len(self._turn(way)) :] if way else []):
            self._ways[prompt.episode_id] = rest
        kept = bool(way) and not search.seen
        search.seen = [*played, *(replace(each, root=each.root + 1) for each in search.seen)]
        self.record({**line_of(search, 0), "named": bool(way), **({"kept": True} if kept else {})})
        if reply.token_ids is None or reply.logprobs is None:
            return text
        begun = question.token_ids[len(prompt.token_ids) :]
        return replace(
            text,
            token_ids=np.concatenate([begun, reply.token_ids]),
            logprobs=np.concatenate([np.zeros(len(begun), dtype=np.float32), reply.logprobs]),
            forced=len(begun),
        )


def _found(search: Search) -> list[Imagined]:
    """The shortest way to a predicted goal; empty if none was seen."""
    goals = [each for each in search.seen if each.worth >= GOAL]
    return way_to(goals[0]) if goals else []
