"""The engine of the overnight simulation: the local one, which leaves the planned episodes without an answer."""

from collections.abc import Sequence
from typing import Any

from night_env import read_plan

from spa.engines.factory import EngineKind, EngineRequest
from spa.engines.local import local_engine
from spa.types import Completion, Prompt, SamplingParams


class Unreliable:
    """The local engine, less reliable."""

    def __init__(self, request: EngineRequest) -> None:
        assert request.template is not None
        self._inner = local_engine(request.cfg, request.model, request.template, request.device)
        self._lost = frozenset(read_plan()["episodes"])

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Responses; finish_reason "error" where there is none."""
        none = Completion(
            text="the engine lost its row", token_ids=None, logprobs=None, finish_reason="error"
        )
        found = self._inner.generate(prompts, sampling)
        return [
            none if prompt.episode_id in self._lost else one
            for prompt, one in zip(prompts, found, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


UNRELIABLE = EngineKind(make=Unreliable, trainable=True)
