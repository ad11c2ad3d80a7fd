"""Policies without a model: scripted responses and random legal play.

They need no tokenizer. With a chat template, responses are also tokenized, with a log-prob of 0 for
every token, so that training loops can use them.
"""

from collections.abc import Callable, Sequence

import numpy as np
from torch import nn

from spa.envs.limits import SLOW, EnvFault, boundary
from spa.formats.registry import format_of
from spa.prompts.template import ChatTemplate
from spa.types import Completion, Prompt, SamplingParams

Response = Callable[[Prompt], str]


class ScriptedEngine:
    """An engine that computes its responses without a model. `response` maps a prompt to the text
    of the response, including the prefill."""

    def __init__(self, response: Response, template: ChatTemplate | None = None) -> None:
        self.response = response
        self.template = template

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return one response per prompt. If the policy raises, its completion has the
        `finish_reason` "error"."""
        return [self._complete(prompt) for prompt in prompts]

    def _complete(self, prompt: Prompt) -> Completion:
        try:
            with boundary("the player", prompt.limit_s, advice=SLOW):
                response = self.response(prompt)
        except EnvFault as error:  # the policy may call the environment, which may fail
            return Completion(
                text=str(error),
                token_ids=None,
                logprobs=None,
                finish_reason="error",
                error=error,
            )
        ids = (
            np.asarray(self.template.response_ids(response, prompt.prefill), dtype=np.int32)
            if self.template
            else None
        )
        return Completion(
            text=response.removeprefix(prompt.prefill),
            token_ids=ids,
            logprobs=None if ids is None else np.zeros(len(ids), dtype=np.float32),
            finish_reason="stop",
        )

    def load_weights(self, model: nn.Module, *, version: int) -> None:
        """Do nothing, since there are no weights."""

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Do nothing, since nothing is cached."""

    def close(self) -> None:
        """Do nothing, since there are no resources to release."""


def random_engine(template: ChatTemplate | None = None, *, max_actions: int) -> ScriptedEngine:
    """Return an engine that plays uniformly random legal actions, in the format that the prompt
    asks for. Each turn has 1 to `max_actions` actions, but no more than the prompt allows."""

    def response(prompt: Prompt) -> str:
        rng = np.random.Generator(np.random.PCG64(prompt.seed))
        # The number of actions is random, so that the data contains long plans and short ones.
        count = int(rng.integers(1, max_actions + 1))
        # The prompt's limit is applied after sampling, so that it does not change the random
        # numbers.
        count = min(count, prompt.max_actions or count)
        answer = f" {prompt.action_sep} ".join(prompt.context.random_plan(rng, count))
        return formatted(prompt, answer)

    return ScriptedEngine(response, template)


def formatted(
    prompt: Prompt, answer: str, *, observation: str = "unknown", prediction: str = "unknown"
) -> str:
    """Return the text of a response with this answer, in the format that the prompt asks for.
    `observation` and `prediction` are the contents of the state blocks, if the format has any."""
    # The prefill `<answer>` means that the format has no thoughts.
    if prompt.prefill == "<answer>":
        return f"<answer>{answer}</answer>"
    if prompt.mode == "add_worldmodel":
        form = format_of(prompt.response_format)
        thoughts = form.scripted_thoughts(answer, prediction, action_sep=prompt.action_sep)
        return form.write(observation, thoughts, prediction, answer)
    return f"<think></think><answer>{answer}</answer>"
