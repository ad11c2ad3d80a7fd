"""Measure the environments' share of a PPO step. Prints JSON lines.

    python benchmarks/environment_share.py [--groups N] [--tokens N] [TAG ...]

One step per tag of the recipe itself (play, score, update) with the built-in model, which has 0.8 million parameters:
with any model that people train the share is smaller by orders of magnitude. Environment seconds are those inside
`reset`, `step`, `state_text`, `to_action`, `instruction` and the making of environments, for every episode of the step.
"""

import argparse
import json
import os
import platform
import time
from functools import wraps
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.recipes import ppo_batch, ppo_rollouts, setup
from spa.recipes.ppo_losses import ActorLoss
from spa.recipes.ppo_run import load_models
from spa.rollout import worker
from spa.training.update import update

TAGS = (
    "SimpleSokoban",
    "HarderSokoban",
    "FrozenLake",
    "Sudoku",
    "Countdown",
    "WebShop",
    "2048",
    "RubiksCube",
)
TIMED = (
    "reset",
    "step",
    "state_text",
    "to_action",
    "instruction",
    "legend",
    "action_names",
    "puzzle_text",
)


class Clock:
    """Processor seconds spent inside environments; calls inside calls count once."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    def timed(self, function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.process_time() - start

        return call

    def watch(self, env: TextEnv) -> TextEnv:
        """The environment, with a clock around its methods."""
        for name in TIMED:
            setattr(env, name, self.timed(getattr(env, name)))
        return env


def config(tag: str, groups: int, tokens: int) -> Config:
    return load_config(
        "base",
        [
            "model_path=builtin:tiny",
            f"es_manager.train.env_groups={groups}",
            *(
                f"es_manager.{part}.env_configs.tags=[{json.dumps(tag)}]"
                for part in ("train", "val")
            ),
            "es_manager.val.env_groups=1",
            "actor_rollout_ref.rollout.max_model_len=4096",
            f"actor_rollout_ref.rollout.response_length={tokens}",
            "actor_rollout_ref.rollout.rollout_filter_ratio=1",
            "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
            f"ppo_mini_batch_size={groups * 4}",
            "micro_batch_size_per_gpu=8",
            "trainer.device=cpu",
            "trainer.threads=1",
        ],
    )


def one_step(cfg: Config) -> dict[str, float]:
    """Seconds of a whole step, and of the environments in it."""
    clock = Clock()
    models, template = load_models(cfg)
    rollout_worker = setup.make_worker(cfg, template, mode="base")
    made = clock.timed(worker.make_env)
    # what workers make their environments with
    worker.make_env = lambda *args: clock.watch(made(*args))
    try:
        start = time.process_time()
        specs = setup.training_specs(cfg, rollout_worker, "train", step=0, held_out=frozenset())
        episodes = rollout_worker.rollout(models.engine, specs, setup.train_sampling(cfg))
        played = time.process_time() - start
        kept = ppo_batch.filter_groups(cfg, ppo_rollouts.make_batch(cfg, episodes, template), {})
        assert kept is not None
        ready = ppo_batch.add_advantages(cfg, models, ppo_batch.score(cfg, models, kept, {}), {})
        actor = cfg.actor_rollout_ref.actor
        loss = ActorLoss(actor, setup.train_sampling(cfg))
        update(
            models.actor,
            ppo_batch.mini_batches(cfg, actor, ready, 1),
            loss,
            ppo_batch.training_cut(actor),
            models.device,
        )
        whole = time.process_time() - start
    finally:
        worker.make_env = made.__wrapped__
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "step_s": round(whole, 2),
        "play_s": round(played, 2),
        "environment_s": round(clock.seconds, 4),
        "share_percent": round(100 * clock.seconds / whole, 3),
        "episodes": len(episodes),
        "turns": len(turns),
        "actions": sum(len(turn.executed) for turn in turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tags", nargs="*", default=TAGS)
    parser.add_argument(
        "--groups", type=int, default=4, help="puzzles per step, each played 8 times"
    )
    parser.add_argument("--tokens", type=int, default=64, help="longest reply")
    options = parser.parse_args()
    print(json.dumps({"cpu": platform.machine(), "torch": torch.__version__}))
    for tag in options.tags:
        print(
            json.dumps({"tag": tag, **one_step(config(tag, options.groups, options.tokens))}),
            flush=True,
        )


if __name__ == "__main__":
    main()
