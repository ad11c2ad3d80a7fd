"""Your own engine: it answers at random, on the validation puzzles of the demo.

spa eval builtin:tiny --config demo actor_rollout_ref.rollout.name=custom_engine:Dice
python custom_engine.py
"""

from collections.abc import Sequence
from pathlib import Path

# ruff: noqa: D102 (Engine documents each method)
import numpy as np
import torch
from torch import nn

from spa.config.load import load_config
from spa.engines.factory import EngineRequest
from spa.recipes import setup
from spa.types import Completion, Prompt, SamplingParams


class Dice:
    """Answers every prompt with a random move. With a model, also return token ids and log-probs."""

    template = None  # text only

    def __init__(self, request: EngineRequest) -> None:
        """`request` has the configuration, model and device."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        moves = (np.random.default_rng(prompt.seed).choice(["Right", "Down"]) for prompt in prompts)
        texts = [f"</think><answer>{move}</answer>" for move in moves]
        return [
            Completion(text=text, token_ids=None, logprobs=None, finish_reason="stop")
            for text in texts
        ]

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """No weights."""

    def forget(self, episode_ids: Sequence[str]) -> None:
        """No caches."""

    def close(self) -> None:
        """Nothing to free."""


if __name__ == "__main__":
    cfg = load_config("demo")
    worker = setup.make_worker(cfg, None, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
    request = EngineRequest(cfg=cfg, model_name=cfg.model_path, device=torch.device("cpu"))
    episodes = worker.rollout(Dice(request), specs, setup.val_sampling(cfg))
    print(f"success in {sum(episode.success for episode in episodes)} of {len(episodes)} episodes")
