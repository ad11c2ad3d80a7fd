"""Engines and settings for playing in tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import spa.worldmodel.branches
from spa.envs.base import TextEnv
from spa.envs.limits import LostEpisodes
from spa.envs.pool import EpisodeSpec, group_specs
from spa.envs.registry import make_env
from spa.policies.scripted import ScriptedEngine
from spa.prompts.render import Prompter
from spa.prompts.template import ChatTemplate
from spa.rollout.loop import collect
from spa.types import Completion, Episode, Prompt, SamplingParams

LAKE: dict[str, Any] = {"is_slippery": False}


def lake(tag: str = "Lake") -> TextEnv:
    return make_env("frozen_lake", LAKE)


def one_group(size: int = 1, *, puzzle_seed: int = 1, purpose: str = "test") -> list[EpisodeSpec]:
    return group_specs(
        purpose, base_seed=puzzle_seed, step=0, tags=["Lake"], n_groups=[1], group_size=size
    )


def groups(count: int, size: int, *, purpose: str = "test") -> list[EpisodeSpec]:
    return group_specs(
        purpose, base_seed=1, step=0, tags=["Lake"], n_groups=[count], group_size=size
    )


def play(
    specs: Sequence[EpisodeSpec],
    engine: Any,
    template: ChatTemplate | None = None,
    *,
    make: Callable[[str], TextEnv] = lake,
    max_tokens: int = 64,
    max_model_len: int = 100_000,
    sampling: SamplingParams | None = None,
    prompters: Mapping[str, Prompter] | None = None,
    env_timeout_s: float | None = None,
    lanes: int = 0,
    lost: LostEpisodes | None = None,
    **settings: Any,
) -> list[Episode]:
    """`collect` with settings that tests mostly want: FrozenLake without slip, coordinates, base format."""
    prompter = Prompter(**{"state_text": "coords", **settings})
    return collect(
        specs,
        make_env=make,
        prompters=prompters or {spec.tag: prompter for spec in specs},
        template=template,
        engine=engine,
        sampling=sampling or SamplingParams(max_tokens=max_tokens),
        format_penalty=-0.1,
        max_model_len=max_model_len,
        env_timeout_s=env_timeout_s,
        lanes=lanes,
        lost=lost,
    )


def says(*responses: str, template: ChatTemplate | None = None) -> ScriptedEngine:
    """An engine whose k-th response in an episode is the k-th of `responses`; the last is repeated."""

    def response(prompt: Prompt) -> str:
        turn = sum(message["role"] == "assistant" for message in prompt.messages)
        return responses[min(turn, len(responses) - 1)]

    return ScriptedEngine(response, template)


def answer(actions: str) -> str:
    return f"<think></think><answer>{actions}</answer>"


@dataclass
class NoiseEngine:
    """Responses of any kind: proper ones, any ids of the vocabulary, with and without an end marker.

    Keeps every prompt and response, so that a test can say what the token buffer must look like.
    """

    template: ChatTemplate
    rng: np.random.Generator
    asked: dict[str, list[np.ndarray]] = field(default_factory=dict)
    said: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        return [self._one(prompt) for prompt in prompts]

    def _one(self, prompt: Prompt) -> Completion:
        stop = sorted(self.template.stop_ids)
        if self.rng.random() < 0.5:
            ids = self.template.response_ids(answer("Left || Up"), prompt.prefill)[:-1]
        else:
            count = int(self.rng.integers(1, 12))
            ids = [
                int(i)
                for i in self.rng.integers(len(self.template.tokenizer), size=count)
                if i not in stop
            ]
        ended = self.rng.random() < 0.6 or not ids
        if ended:
            ids.append(stop[int(self.rng.integers(len(stop)))])
        self.asked.setdefault(prompt.episode_id, []).append(prompt.token_ids)
        self.said.setdefault(prompt.episode_id, []).append(np.asarray(ids))
        return Completion(
            text=self.template.decode_response(ids),
            token_ids=np.asarray(ids, dtype=np.int32),
            logprobs=self.rng.normal(size=len(ids)).astype(np.float32),
            finish_reason="stop" if ended else "length",
        )

    def load_weights(self, model: Any, *, version: int) -> None:
        """No weights."""

    def forget(self, episode_ids: Sequence[str]) -> None:
        """No cache."""

    def close(self) -> None:
        """Nothing held."""


def counted_tries(monkeypatch) -> list[int]:
    """The number of actions of every plan that is tried in a copy from now on."""
    played, real = list[int](), spa.worldmodel.branches._try

    def noted(*args):
        turn = real(*args)
        played.append(len(turn.executed))
        return turn

    monkeypatch.setattr(spa.worldmodel.branches, "_try", noted)
    return played
