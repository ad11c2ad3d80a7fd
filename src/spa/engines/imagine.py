"""Look before you leap: several replies are drawn, the state that each leads to is imagined, the best one is played.

Whose imagination it is decides what is measured. `learnt`: the model's own prediction in each reply. `oracle`: a copy
of the game, in which nothing is imagined; with `spoil` p, each state is with probability p that of another plan, so
that the gain can be seen to depend on how often imagination is right. `shuffled`: predictions handed to other replies,
the control: whatever it gains is not knowledge.

With `depth` above 1 it goes on where it imagines to be: in every imagined state that is new and not yet the end, the
same question is asked again (`spa.prompts.elsewhere`), until the goal shows or the turns are over; the reply that the
way to the goal begins with is played. A state is entered once, so that the search is no wider than the game. With
`keep` the rest of that way is played without another look, for as long as each state is the one that was imagined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from spa.engines.base import Engine
from spa.envs.base import StateText, TextEnv
from spa.envs.limits import MAKING_S, EnvFault, boundary, checked_step
from spa.errors import ConfigError
from spa.models.heap import release_memory
from spa.prompts.elsewhere import elsewhere
from spa.prompts.parse import parse_reply
from spa.prompts.template import ChatTemplate
from spa.seeds import derange, stream, stream_seed
from spa.types import Completion, ParsedReply, Prompt, SamplingParams

Dynamics = Literal["learnt", "oracle", "shuffled"]
Plans = Literal["drawn", "every_action"]
GOAL = 1.0
"""What a state is worth in which the goal is reached."""
NOTHING = -2.0
"""What a reply is worth that imagines nothing readable; states are worth from -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imagined:
    """One reply: what it would do, and the state that it is judged by."""

    reply: Completion
    parsed: ParsedReply
    state: str | None
    worth: float
    right: bool | None  # whether that state is what would come from where it began; None if nobody knows
    env: TextEnv | None = None  # a copy of the game after it, if it goes on there and is where that state says
    root: int = 0  # the reply to the real state that it grew from
    depth: int = 1  # turns that are imagined up to this state
    actions_left: int | None = None  # of the episode, after it; None: no limit is known
    before: "Imagined | None" = None  # the reply whose state it was drawn in; None: the real state


def require_appraisal(env: TextEnv, tag: str, *, instead: str) -> None:
    """Raises ConfigError, with the setting that does without, if states of the environment cannot be judged by their
    text."""
    if env.appraise(env.world_state_text("grid_and_coords")) is None:
        raise ConfigError(f"the environment {tag} cannot say what a state is worth (TextEnv.appraise), so {instead}")


def require_dynamics(env: TextEnv, tag: str, dynamics: Dynamics, depth: int = 1, plans: Plans = "drawn") -> None:
    """Raises ConfigError if imagined states of the environment cannot be judged, not be had from an oracle, or not be
    shown in a prompt, as is needed to imagine more than one turn, or if its actions cannot all be asked for."""
    require_appraisal(
        env,
        tag,
        instead="nothing can be planned: imagine.n must be 1 (in self-play generate.imagine.n, as in the preset tiny)",
    )
    hidden = env.state_text("grid_and_coords") != env.world_state_text("grid_and_coords")
    if (depth > 1 or plans == "every_action") and (hidden or env.image() is not None or env.players > 1):
        raise ConfigError(
            f"imagined states of {tag} are not what its prompts show, so imagine.depth must be 1 and imagine.plans "
            "drawn (in self-play generate.imagine; without keep)"
        )
    if plans == "every_action" and not env.action_names():
        raise ConfigError(f"the actions of {tag} are free text: not every one can be asked for (imagine.plans)")
    if dynamics == "oracle":
        try:
            env.clone()
        except NotImplementedError:
            raise ConfigError(
                f"the environment {tag} cannot be copied, so there is no dynamics=oracle to imagine with"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A state in which replies are drawn, real or imagined; `env` is a copy of the game there, None if it is not known
    to be there."""

    prompt: Prompt
    env: TextEnv | None
    root: int = 0
    depth: int = 1
    before: Imagined | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Where actions lead: the state, and the copy of the game if it goes on; both None if nobody knows."""

    state: str | None = None
    env: TextEnv | None = None


class Search:
    """What was imagined of one prompt so far. The first `n` of `seen` are the replies to the real state."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.turn = sum(message["role"] == "assistant" for message in prompt.messages)
        self.seen: list[Imagined] = []
        self.entered: set[str] = set()
        self.fault = ""

    def failed(self) -> Completion:
        """The reply that says how the game has failed."""
        return Completion(text=self.fault, token_ids=None, logprobs=None, finish_reason="error")


class Imagining:
    """`engine`, whose every reply is the best of `n`, with at most `depth` turns imagined. Ties go to the reply that
    was drawn first, so that imagination that sees nothing changes nothing.

    `width`: the imagined states of a depth that are gone on from. `keep`: a way to the goal is kept to; the replies of
    its later turns are those that were drawn where it was imagined, log-probs included. Nothing is
    imagined beyond the turns and actions that an episode has left, nor in prompts of more than `max_prompt` tokens.
    `template`: None for engines without tokens. The engine is asked for `rows` replies at a time, and forgets them
    before it is asked for more.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        n: int,
        dynamics: Dynamics,
        spoil: float,
        state_text: StateText,
        max_actions: int,
        depth: int = 1,
        width: int = 8,
        keep: bool = False,
        max_prompt: int | None = None,
        rows: int = 1024,
        template: ChatTemplate | None = None,
        record: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        self.engine, self.n, self.dynamics, self.spoil = engine, n, dynamics, spoil
        self.state_text: StateText = state_text
        self.max_actions, self.record = max_actions, record
        self.depth, self.width, self.max_prompt, self.rows, self.template = depth, width, max_prompt, rows, template
        self.keep = keep
        self._ways: dict[str, list[Imagined]] = {}  # episode -> the replies that are left of its way to the goal

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """The best of `n` completions of each prompt, of which the first draw is the one that the engine alone would
        give, or the next of a way that is kept to."""
        kept = [self._keep_to(prompt) for prompt in prompts]
        searches = [Search(prompt) for prompt, way in zip(prompts, kept, strict=True) if way is None]
        self.look_ahead(searches, sampling)
        chosen = iter([self._choose(search) for search in searches])
        return [next(chosen) if way is None else way for way in kept]

    def look_ahead(self, searches: "Sequence[Search]", sampling: SamplingParams) -> None:
        """Imagine from every real state until the goal shows, or as far as is allowed."""
        for depth in range(1, self.depth + 1):
            asked = [(search, place) for search in searches for place in self._places(search, depth)]
            questions = [self.questions(place) for _, place in asked]
            replies = iter(self.ask([question for each in questions for question in each], sampling))
            for (search, place), each in zip(asked, questions, strict=True):
                self._take(search, place, [whole(question, place.prompt, next(replies)) for question in each])

    def questions(self, place: "Place") -> list[Prompt]:
        """What the engine is asked in a place."""
        return [_draw(place.prompt, i) for i in range(self.n)]

    def turns_ahead(self, prompt: Prompt) -> int:
        """The depth from which on nothing is imagined: the turns that the episode has left."""
        return prompt.turns_left or 1

    def _keep_to(self, prompt: Prompt) -> Completion | None:
        """The next reply of the way that the episode is on; None if there is none, or if it has led elsewhere."""
        way = self._ways.pop(prompt.episode_id, None)
        if not way:
            return None
        try:
            with boundary("imagining", MAKING_S):
                here = prompt.context.state_text(self.state_text)
                if way[0].before is None or not same(way[0].before.state, here):
                    return None
                truth = _after(prompt.context, way[0].parsed.actions, self.state_text, stream(prompt.seed, "imagine"))
        except EnvFault:
            return None  # the search meets it again, and says so
        self._ways[prompt.episode_id] = way[1:]
        search = Search(prompt)
        search.seen = [replace(way[0], right=same(way[0].state, truth.state), root=0, depth=1)]
        self.record({**line_of(search, 0), "tokens": [0], "kept": True})
        return way[0].reply

    def ask(self, drawn: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """The engine's replies; only what it has cached of real states is kept."""
        replies: list[Completion] = []
        for i in range(0, len(drawn), self.rows):
            part = drawn[i : i + self.rows]
            replies += self.engine.generate(part, sampling)
            self.engine.forget([prompt.episode_id for prompt in part if "#" in prompt.episode_id])
            release_memory()
        return replies

    def _places(self, search: "Search", depth: int) -> "list[Place]":
        """Where the replies of this depth begin: the real state, or the imagined ones that are to be gone on from."""
        prompt = search.prompt
        if depth == 1:
            return [Place(prompt=prompt, env=prompt.context)]
        if search.fault or depth > self.turns_ahead(prompt) or any(each.worth >= GOAL for each in search.seen):
            return []
        try:
            with boundary("imagining", MAKING_S):
                shown = prompt.context.state_text(self.state_text)
        except EnvFault as error:
            search.fault = str(error)
            return []
        places = list[Place]()
        search.entered.add(shown.strip())
        for each in search.seen:
            if each.depth != depth - 1 or len(places) == self.width or not self._goes_on(search, each):
                continue
            state = (each.state or "").strip()
            search.entered.add(state)
            moved = elsewhere(prompt, shown, state, self.template)
            if moved is not None and (self.max_prompt is None or len(moved.token_ids) <= self.max_prompt):
                number = f"{prompt.episode_id}#{depth}.{len(places)}"
                seed = stream_seed(prompt.seed, "imagine/place", depth, len(places))
                moved = replace(
                    moved,
                    episode_id=number,
                    seed=seed,
                    turns_left=1,
                    actions_left=each.actions_left,
                    context=each.env or prompt.context,
                )
                places.append(Place(prompt=moved, env=each.env, root=each.root, depth=depth, before=each))
        return places

    def _goes_on(self, search: "Search", each: Imagined) -> bool:
        """Whether there is more to imagine after a state: it is new, not the end, and actions are left."""
        state = (each.state or "").strip()
        known = each.env is not None or self.dynamics != "oracle"
        new = bool(state) and state not in search.entered
        return known and new and 0 <= each.worth < GOAL and each.actions_left != 0

    def _take(self, search: "Search", place: "Place", replies: Sequence[Completion]) -> None:
        """Judge the replies in a place."""
        try:
            with boundary("imagining", MAKING_S):
                search.seen += self.imagine(place, replies)
        except EnvFault as error:
            search.fault = str(error)

    def _choose(self, search: "Search") -> Completion:
        if search.fault:
            return search.failed()
        worths = [each.worth for each in search.seen[: self.n]]
        for each in search.seen:
            worths[each.root] = max(worths[each.root], each.worth if each.worth >= GOAL else NOTHING)
        chosen = int(np.argmax(worths))
        goals = [each for each in search.seen if each.worth >= GOAL and each.root == chosen]
        if self.keep and goals:
            self._ways[search.prompt.episode_id] = way_to(goals[0])[1:]
        self.record(line_of(search, chosen))
        return search.seen[chosen].reply

    def imagine(self, place: "Place", replies: Sequence[Completion]) -> list[Imagined]:
        """What each reply in a place would lead to, and what that is worth."""
        parsed = [self._parse(place.prompt, reply) for reply in replies]
        rng, env, left = stream(place.prompt.seed, "imagine"), place.env, place.prompt.actions_left
        truths = [_after(env, each.actions, self.state_text, rng) for each in parsed]
        if self.dynamics == "oracle":
            ends = [self._spoilt(env, each, truth, rng) for each, truth in zip(parsed, truths, strict=True)]
            states = [end.state for end in ends]
        else:
            ends, states = truths, [each.prediction for each in parsed]
        if self.dynamics == "shuffled":
            states = [states[number] for number in derange(states, rng)]
        found = list[Imagined]()
        for i, (each, state, end, truth) in enumerate(zip(parsed, states, ends, truths, strict=True)):
            right = same(state, truth.state)
            found.append(
                Imagined(
                    reply=replies[i],
                    parsed=each,
                    state=state,
                    worth=_worth(place.prompt.context, each, state),
                    right=right,
                    env=end.env if self.dynamics == "oracle" or right else None,
                    root=i if place.depth == 1 else place.root,
                    depth=place.depth,
                    actions_left=None if left is None else left - len(each.actions),
                    before=place.before,
                )
            )
        return found

    def _parse(self, prompt: Prompt, reply: Completion) -> ParsedReply:
        """A reply with as many actions as would be executed."""
        parsed = parse_reply(
            prompt.opener + reply.text,
            mode=prompt.mode,
            enable_think=prompt.opener == "<think>",
            action_sep=prompt.action_sep,
            max_actions=self.max_actions,
            order=prompt.reply_order,
        )
        return replace(parsed, actions=parsed.actions[: prompt.actions_left])

    def _spoilt(self, env: TextEnv | None, parsed: ParsedReply, truth: "_End", rng: np.random.Generator) -> "_End":
        """The true state or, with probability `spoil`, that after as many random actions."""
        if env is None:
            return truth
        other = _after(env, env.random_plan(rng, len(parsed.actions)), self.state_text, rng)
        return other if rng.random() < self.spoil else truth

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """New weights."""
        self.engine.load_weights(model, version=version)

    def forget(self, episode_ids: Sequence[str]) -> None:
        """These episodes are over."""
        for episode in episode_ids:
            self._ways.pop(episode, None)
        self.engine.forget(episode_ids)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def whole(question: Prompt, asked: Prompt, reply: Completion) -> Completion:
    """A reply as the prompt that was asked would have it: with what the question had begun of it."""
    if reply.finish_reason == "error":
        return reply
    return replace(reply, text=question.opener.removeprefix(asked.opener) + reply.text)


def _draw(prompt: Prompt, number: int) -> Prompt:
    if number == 0:
        return prompt
    seed = stream_seed(prompt.seed, "imagine/draw", number)
    return replace(prompt, episode_id=f"{prompt.episode_id}#{number}", seed=seed, turns_left=1)


def _after(env: TextEnv | None, actions: Sequence[str], mode: StateText, rng: np.random.Generator) -> _End:
    """Where the actions lead in a copy that draws chance of its own; nowhere known if it cannot be copied or nothing is
    done."""
    seed = int(rng.integers(2**31))
    if env is None:
        return _End()
    try:
        twin, done, over = env.clone(seed), False, False
    except NotImplementedError:
        return _End()
    for text in actions:
        action = twin.to_action(text)
        if action is None:
            continue
        done = True
        over = checked_step(twin.step(action))[1]
        if over:
            break
    return _End(state=twin.world_state_text(mode), env=None if over else twin) if done else _End()


def way_to(goal: Imagined) -> list[Imagined]:
    """The replies from the real state to the goal."""
    way = [goal]
    while way[0].before is not None:
        way.insert(0, way[0].before)
    return way


def _worth(env: TextEnv, parsed: ParsedReply, state: str | None) -> float:
    if not parsed.well_formed or state is None:
        return NOTHING
    worth = env.appraise(state)
    return NOTHING if worth is None else worth


def _length(reply: Completion) -> int | None:
    return None if reply.token_ids is None else len(reply.token_ids)


def same(state: str | None, truth: str | None) -> bool | None:
    """Whether a state is the true one, but for white space around it; None if nobody knows the true one."""
    return None if truth is None else state is not None and state.strip() == truth.strip()


def line_of(search: Search, chosen: int) -> dict[str, Any]:
    """What is recorded of a turn: enough to show what was imagined, and what it cost."""
    return {
        "episode_id": search.prompt.episode_id,
        "turn": search.turn,
        "chosen": chosen,
        "tokens": [_length(each.reply) for each in search.seen],
        "imagined": [
            {
                "actions": each.parsed.actions,
                "state": each.state,
                "worth": each.worth,
                "right": each.right,
                "root": each.root,
                "depth": each.depth,
            }
            for each in search.seen
        ],
    }
