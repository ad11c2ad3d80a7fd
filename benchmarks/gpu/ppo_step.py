"""Where the time of a PPO step of the paper's size goes: 32 groups of 8 episodes, 5 turns of 400 tokens.

Prints the seconds of every part, the largest first, the share of the time in which the GPU is idle, and peak memory.
Tokens are random, so that lengths are fixed. Environments of FrozenLake play random moves, and their prompts are
rendered and tokenized, if gymnasium is installed. The filter keeps a quarter of the groups. Two steps are made and the
second is reported, since only then the optimizers hold their moments. Trainer and sampler have to compute the same
log-probs.
"""

import importlib.util
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from spa.algo.advantages import gae
from spa.algo.filters import select_groups
from spa.algo.losses import entropy_bonus, policy_loss, value_loss
from spa.algo.masked import whiten
from spa.engines.local import LocalEngine
from spa.models.forward import Critic, pack_rows, token_logprobs, token_values
from spa.models.load import save_activations
from spa.training.batch import select
from spa.training.optim import make_optimizer
from spa.training.update import (
    MicroBatching,
    Trainable,
    mini_batch,
    plan_mini_batches,
    score_logprobs,
    score_values,
    update,
)
from spa.types import EpisodeBatch, MiniBatch, PPOBatch, Prompt, SamplingParams, ScoredBatch

GROUPS, MEMBERS, TURNS, NEW = 32, 8, 5, 400
FIRST, LATER = 500, 120  # tokens of the first prompt and of later user messages
MINI_BATCH, TOKENS = 32, 16384
ENTROPY = 0.001


@dataclass
class Clock:
    """Seconds by part."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        common.synchronize()
        start = time.perf_counter()
        yield
        common.synchronize()
        self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - start


class Idle:
    """Mean share of the time in which no kernel ran, by nvidia-smi; None without it."""

    def __enter__(self) -> "Idle":
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self.share: float | None = None
        self.process = None
        if torch.cuda.is_available():
            self.process = subprocess.Popen(
                [*command, "-i", "0", "-lms", "100"], stdout=subprocess.PIPE, text=True
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.process.terminate()
            busy = [float(line) for line in self.process.communicate()[0].split()]
            self.share = 1 - sum(busy) / len(busy) / 100 if busy else None


class Lakes:
    """Environments of all episodes, which play a random move per turn."""

    def __init__(self, rows: int, clock: Clock) -> None:
        from spa.envs.registry import make_env
        from spa.models.load import load_tokenizer
        from spa.prompts.render import Prompter

        self.clock = clock
        self.rng = np.random.default_rng(0)
        self.prompter = Prompter()
        self.tokenizer = load_tokenizer("builtin:tiny")
        self.envs = []
        with clock("environments"):
            for row in range(rows):
                env = make_env("frozen_lake", {"is_slippery": False})
                env.reset(seed=row // MEMBERS)
                self.envs.append(env)
        with clock("prompts and tokens"):
            for env in self.envs:
                self.tokenizer(self.prompter.first_messages(env)[1]["content"])

    def turn(self, number: int) -> None:
        """Play a move in every environment, and make the next prompts."""
        with self.clock("environments"):
            for env in self.envs:
                action = env.to_action(env.random_action(self.rng))
                assert action is not None
                if env.step(action)[2]:
                    env.reset(seed=number)
        with self.clock("prompts and tokens"):
            for env in self.envs:
                message = self.prompter.next_message(
                    env, turn=number + 1, actions_left=10, reward=0.0
                )
                self.tokenizer(message["content"])


@dataclass(frozen=True)
class Size:
    """Number of episodes, turns and tokens."""

    groups: int
    members: int
    turns: int
    new: int
    first: int
    later: int
    mini: int
    tokens: int


def main() -> None:
    """Play, score, update; print JSON."""
    options = common.argument_parser(__doc__ or "").parse_args()
    size = Size(GROUPS, MEMBERS, TURNS, NEW, FIRST, LATER, MINI_BATCH, TOKENS)
    if options.tiny:
        size = Size(4, 2, 2, 6, 16, 5, 2, 256)
    config = common.model_config(options)
    actor, critic = (
        trainable(common.random_model(config)),
        trainable(Critic(common.random_model(config).base_model)),
    )
    engine = LocalEngine(actor.model, common.BareTemplate(), autocast=torch.bfloat16)  # type: ignore[arg-type]
    step(engine, actor, critic, config, size, seed=0)
    with Idle() as idle:
        measured = step(engine, actor, critic, config, size, seed=1)
    measured["gpu_idle_share"] = idle.share
    measured["cuda_graphs"] = engine.decoder is not None
    # The policy's update alone: forward and backward pass and optimizer, as prime-rl counts its trainer.
    seconds = measured["seconds"]["update actor"]
    lengths = [measured["longest_episode_tokens"]] * measured["trained_episodes"]
    parameters = sum(p.numel() for p in actor.model.parameters())
    flops = common.sequence_flops(config, parameters, lengths)
    measured |= {
        "trained_tokens_per_s": round(sum(lengths) / seconds, 1),
        "mfu": round(flops / seconds / common.matrix_peak(), 4),
    }
    common.report(options, measured)


def step(
    engine: LocalEngine, actor: Trainable, critic: Trainable, config: Any, size: Size, *, seed: int
) -> dict[str, Any]:
    """One PPO step; returns what it took."""
    clock = Clock()
    batch = play(engine, config, size, clock, seed=seed)
    keep, _ = select_groups(
        batch.scores, batch.group_ids, ratio=0.25, kind="std", strategy="top_k", include_zero=False
    )
    kept = select(batch, keep)
    scored = score(actor, critic, kept, size, clock)
    gap = (scored.old_logprobs - scored.sampler_logprobs)[scored.mask]
    kl = float((gap.exp() - 1 - gap).mean())
    if kl > 0.01:
        raise SystemExit(
            f"KL(trainer || sampler) is {kl:.3g} per token: the engine samples from other numbers"
        )
    ready = with_advantages(scored)
    metrics = {
        name: train(part, ready, loss, size, clock, name)
        for name, part, loss in (("critic", critic, critic_loss), ("actor", actor, actor_loss))
    }
    with clock("new weights"):
        engine.load_weights(actor.model, version=seed + 1)
    with clock("saving"), tempfile.TemporaryDirectory() as folder:
        save(actor, critic, Path(folder))
    spent = dict(sorted(clock.spent.items(), key=lambda part: -part[1]))
    return {
        "correctness": {"kl_trainer_sampler": kl, "logprob_gap_max": float(gap.abs().max())},
        "episodes": len(batch),
        "trained_episodes": len(kept),
        "sampled_tokens": int(batch.mask.sum()),
        "longest_episode_tokens": int(batch.lengths.max()),
        "seconds": {name: round(value, 2) for name, value in spent.items()},
        "seconds_total": round(sum(spent.values()), 2),
        # A run saves every `trainer.save_freq` steps only.
        "seconds_without_saving": round(sum(spent.values()) - spent["saving"], 2),
        "grad_norms": {name: round(found["grad_norm"], 4) for name, found in metrics.items()},
    }


def trainable(model: Any) -> Trainable:
    """With recomputed activations and packed rows."""
    save_activations(model.body if isinstance(model, Critic) else model)
    pack_rows(model)
    return Trainable(model=model, optimizer=make_optimizer(model, lr=1e-6), autocast=torch.bfloat16)


def save(actor: Trainable, critic: Trainable, folder: Path) -> None:
    """Weights and optimizer states, as a checkpoint has them."""
    actor.model.save_pretrained(folder)
    torch.save(critic.model.state_dict(), folder / "critic.pt")
    for name, part in (("actor", actor), ("critic", critic)):
        torch.save(part.optimizer.state_dict(), folder / f"{name}_optimizer.pt")


def play(engine: LocalEngine, config: Any, size: Size, clock: Clock, *, seed: int) -> EpisodeBatch:
    """Every episode: a prompt shared by its group, then responses and random messages in turn."""
    rng, rows = np.random.default_rng(seed), size.groups * size.members
    shared = rng.integers(0, config.vocab_size, (size.groups, size.first), dtype=np.int32)
    ids = [shared[row // size.members] for row in range(rows)]
    sampled = [np.zeros(size.first, bool) for _ in range(rows)]
    logprobs = [np.zeros(size.first, np.float32) for _ in range(rows)]
    turns = [np.full(size.first, -1) for _ in range(rows)]
    lakes = Lakes(rows, clock) if importlib.util.find_spec("gymnasium") else None
    for turn in range(size.turns):
        prompts = [
            Prompt(
                episode_id=str(row),
                messages=(),
                token_ids=ids[row],
                prefill="",
                seed=1000 * turn + row,
            )
            for row in range(rows)
        ]
        with clock("sampling"):
            responses = engine.generate(prompts, SamplingParams(max_tokens=size.new))
        if lakes is not None:
            lakes.turn(turn + 1)
        for row, response in enumerate(responses):
            assert response.token_ids is not None and response.logprobs is not None
            message = rng.integers(
                0, config.vocab_size, size.later if turn + 1 < size.turns else 0, dtype=np.int32
            )
            ids[row] = np.concatenate([ids[row], response.token_ids, message])
            sampled[row] = np.concatenate(
                [sampled[row], np.ones(len(response.token_ids), bool), np.zeros(len(message), bool)]
            )
            logprobs[row] = np.concatenate(
                [logprobs[row], response.logprobs, np.zeros(len(message), np.float32)]
            )
            turns[row] = np.concatenate(
                [turns[row], np.full(len(response.token_ids) + len(message), turn)]
            )
    engine.forget([str(row) for row in range(rows)])
    scores = rng.normal(size=rows).astype(np.float32)
    return batched(ids, sampled, logprobs, turns, scores, size)


def batched(
    ids: list[np.ndarray],
    sampled: list[np.ndarray],
    logprobs: list[np.ndarray],
    turns: list[np.ndarray],
    scores: np.ndarray,
    size: Size,
) -> EpisodeBatch:
    """Episodes of one length as a batch; the score lies on the last sampled token."""
    mask = torch.from_numpy(np.stack(sampled))[:, 1:].contiguous()
    last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    ends = torch.zeros_like(mask)
    ends[torch.arange(len(ids)), last] = True
    return EpisodeBatch(
        input_ids=torch.from_numpy(np.stack(ids)).long(),
        lengths=torch.full((len(ids),), len(ids[0])),
        mask=mask,
        turns=torch.from_numpy(np.stack(turns))[:, 1:].long(),
        turn_ends=ends,
        rewards=torch.where(ends, torch.from_numpy(scores)[:, None], 0.0),
        scores=torch.from_numpy(scores),
        group_ids=torch.arange(len(ids)) // size.members,
        tag_ids=torch.zeros(len(ids), dtype=torch.int64),
        sampler_logprobs=torch.from_numpy(np.stack(logprobs))[:, 1:].contiguous(),
        rl_weights=mask.float(),
        ce_weights=torch.zeros(mask.shape),
        episodes=torch.arange(len(ids)),
        starts=torch.zeros(len(ids), dtype=torch.int64),
    )


def score(
    actor: Trainable, critic: Trainable, kept: EpisodeBatch, size: Size, clock: Clock
) -> ScoredBatch:
    """Log-probs and values before the update."""
    micro, where = MicroBatching(max_tokens=size.tokens), common.device()
    with clock("score policy"):
        old = score_logprobs(actor, kept, micro, where)
    with clock("score critic"):
        values = score_values(critic, kept, micro, where)
    known = {item.name: getattr(kept, item.name) for item in fields(EpisodeBatch)}
    return ScoredBatch(**known, old_logprobs=old, values=values)


def with_advantages(batch: ScoredBatch) -> PPOBatch:
    """GAE with gamma = lambda = 1, whitened."""
    assert batch.values is not None
    advantages, returns = gae(batch.rewards, batch.values, batch.mask, 1.0, 1.0)
    known = {item.name: getattr(batch, item.name) for item in fields(ScoredBatch)}
    return PPOBatch(**known, advantages=whiten(advantages, batch.mask), returns=returns)


def train(
    part: Trainable, batch: PPOBatch, loss: Any, size: Size, clock: Clock, name: str
) -> dict[str, float]:
    """One epoch of mini-batches."""
    rows = plan_mini_batches(
        len(batch),
        size=size.mini,
        count=None,
        epochs=1,
        shuffle=False,
        generator=torch.Generator().manual_seed(0),
    )
    minis = [mini_batch(batch, picked, "token-mean") for picked in rows]
    with clock(f"update {name}"):
        return update(part, minis, loss, MicroBatching(max_tokens=size.tokens), common.device())


def actor_loss(model: Any, batch: MiniBatch) -> tuple[torch.Tensor, Any]:
    """Clipped policy loss with an entropy bonus."""
    logprobs, entropy = token_logprobs(
        model, batch.input_ids, batch.mask, with_entropy=True, entropy_grad=True
    )
    loss, info = policy_loss(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.token_weights,
        clip_low=0.2,
        clip_high=0.28,
        clip_c=3.0,
    )
    return loss - ENTROPY * entropy_bonus(entropy, batch.token_weights), info


def critic_loss(model: Any, batch: MiniBatch) -> tuple[torch.Tensor, Any]:
    """Squared error of the values."""
    values = token_values(model, batch.input_ids, batch.mask)
    assert batch.values is not None
    return value_loss(values, batch.values, batch.returns, batch.token_weights, clip=None)


if __name__ == "__main__":
    main()
