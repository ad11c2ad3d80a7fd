"""Look before you leap: several replies are drawn, the state that each leads to is imagined, the best one is played.

Whose imagination it is decides what is measured. `learnt`: the model's own prediction in each reply. `oracle`: a copy
of the game, in which nothing is imagined; with `spoil` p, each state is with probability p that of another plan, so
that the gain can be seen to depend on how often imagination is right. `shuffled`: predictions handed to other replies,
the control: whatever it gains is not knowledge.
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
from spa.prompts.parse import parse_reply
from spa.seeds import stream, stream_seed
from spa.types import Completion, ParsedReply, Prompt, SamplingParams

Dynamics = Literal["learnt", "oracle", "shuffled"]
NOTHING = -2.0
"""What a reply is worth that imagines nothing readable; states are worth from -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imagined:
    """One reply: what it would do, and the state that it is judged by."""

    parsed: ParsedReply
    state: str | None
    worth: float
    right: bool | None  # whether that state is what would come; None if nobody knows


def require_appraisal(env: TextEnv, tag: str, *, instead: str) -> None:
    """Raises ConfigError, with the setting that does without, if states of the environment cannot be judged by their
    text."""
    if env.appraise(env.world_state_text("grid_and_coords")) is None:
        raise ConfigError(f"the environment {tag} cannot say what a state is worth (TextEnv.appraise), so {instead}")


def require_dynamics(env: TextEnv, tag: str, dynamics: Dynamics) -> None:
    """Raises ConfigError if imagined states of the environment cannot be judged, or not be had from an oracle."""
    require_appraisal(env, tag, instead="imagine.n must be 1")
    if dynamics == "oracle":
        try:
            env.clone()
        except NotImplementedError:
            raise ConfigError(
                f"the environment {tag} cannot be copied, so there is no imagine.dynamics=oracle"
            ) from None


class Imagining:
    """`engine`, whose every reply is the best of `n`. Ties go to the reply that was drawn first, so that imagination
    that sees nothing changes nothing."""

    def __init__(
        self,
        engine: Engine,
        *,
        n: int,
        dynamics: Dynamics,
        spoil: float,
        state_text: StateText,
        max_actions: int,
        record: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        self.engine, self.n, self.dynamics, self.spoil = engine, n, dynamics, spoil
        self.state_text: StateText = state_text
        self.max_actions, self.record = max_actions, record

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """The best of `n` completions of each prompt; the first draw is the one that the engine alone would give."""
        drawn = [_draw(prompt, number) for prompt in prompts for number in range(self.n)]
        replies = self.engine.generate(drawn, sampling)
        self.engine.forget([prompt.episode_id for prompt in drawn if "#" in prompt.episode_id])
        return [self._choose(prompt, replies[i * self.n : (i + 1) * self.n]) for i, prompt in enumerate(prompts)]

    def _choose(self, prompt: Prompt, replies: Sequence[Completion]) -> Completion:
        try:
            with boundary("imagining", MAKING_S):
                seen = self.imagine(prompt, replies)
        except EnvFault as error:
            return Completion(text=str(error), token_ids=None, logprobs=None, finish_reason="error")
        chosen = int(np.argmax([each.worth for each in seen]))
        self.record(_line(prompt, replies, seen, chosen))
        return replies[chosen]

    def imagine(self, prompt: Prompt, replies: Sequence[Completion]) -> list[Imagined]:
        """What each reply would lead to, and what that is worth."""
        parsed = [self._parse(prompt, reply) for reply in replies]
        rng, env = stream(prompt.seed, "imagine"), prompt.context
        truths = [_after(env, each.actions, self.state_text, rng) for each in parsed]
        if self.dynamics == "oracle":
            states = [self._spoilt(env, each, truth, rng) for each, truth in zip(parsed, truths, strict=True)]
        else:
            states = [each.prediction for each in parsed]
        if self.dynamics == "shuffled":
            states = [states[number] for number in rng.permutation(len(states))]
        return [
            Imagined(parsed=each, state=state, worth=_worth(env, each, state), right=_same(state, truth))
            for each, state, truth in zip(parsed, states, truths, strict=True)
        ]

    def _parse(self, prompt: Prompt, reply: Completion) -> ParsedReply:
        return parse_reply(
            prompt.opener + reply.text,
            mode=prompt.mode,
            enable_think=prompt.opener == "<think>",
            action_sep=prompt.action_sep,
            max_actions=self.max_actions,
            order=prompt.reply_order,
        )

    def _spoilt(self, env: TextEnv, parsed: ParsedReply, truth: str | None, rng: np.random.Generator) -> str | None:
        """The true state or, with probability `spoil`, that after as many random actions."""
        other = env.random_plan(rng, len(parsed.actions))
        return _after(env, other, self.state_text, rng) if rng.random() < self.spoil else truth

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """New weights."""
        self.engine.load_weights(model, version=version)

    def forget(self, episode_ids: Sequence[str]) -> None:
        """These episodes are over."""
        self.engine.forget(episode_ids)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def _draw(prompt: Prompt, number: int) -> Prompt:
    if number == 0:
        return prompt
    seed = stream_seed(prompt.seed, "imagine/draw", number)
    return replace(prompt, episode_id=f"{prompt.episode_id}#{number}", seed=seed)


def _after(env: TextEnv, actions: Sequence[str], mode: StateText, rng: np.random.Generator) -> str | None:
    """The state after the actions in a copy that draws chance of its own; None if it cannot be copied or nothing is
    done."""
    seed = int(rng.integers(2**31))
    try:
        twin, done = env.clone(seed), False
    except NotImplementedError:
        return None
    for text in actions:
        action = twin.to_action(text)
        if action is None:
            continue
        done = True
        if checked_step(twin.step(action))[1]:
            break
    return twin.world_state_text(mode) if done else None


def _worth(env: TextEnv, parsed: ParsedReply, state: str | None) -> float:
    if not parsed.well_formed or state is None:
        return NOTHING
    worth = env.appraise(state)
    return NOTHING if worth is None else worth


def _same(state: str | None, truth: str | None) -> bool | None:
    return None if truth is None else state is not None and state.strip() == truth.strip()


def _line(prompt: Prompt, replies: Sequence[Completion], seen: Sequence[Imagined], chosen: int) -> dict[str, Any]:
    """What is recorded of a turn: enough to show what was imagined, and what it cost."""
    turn = sum(message["role"] == "assistant" for message in prompt.messages)
    return {
        "episode_id": prompt.episode_id,
        "turn": turn,
        "chosen": chosen,
        "tokens": [None if reply.token_ids is None else len(reply.token_ids) for reply in replies],
        "imagined": [
            {"actions": each.parsed.actions, "state": each.state, "worth": each.worth, "right": each.right}
            for each in seen
        ],
    }
