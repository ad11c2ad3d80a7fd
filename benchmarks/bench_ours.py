"""Our sides of `bench.py`, and the peers that need nothing but transformers: python benchmarks/bench_ours.py ROW SIDE.

A side is a function that makes what it needs and returns a round of work. Models are `builtin:tiny` (`small`) and a
folder, or random weights of SmolLM2's shape (`real`).
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import torch
from bench_worker import serve
from transformers import LlamaConfig, LlamaForCausalLM
from workload import Rollout, Rows, rollout_of, rows_of

from spa.engines.fused import FusedModel
from spa.engines.kv_cache import GrowingCache
from spa.engines.local import LocalEngine
from spa.models import attention
from spa.models.allocator import limit_kernel_caches
from spa.models.load import load_policy
from spa.models.precision import PRECISION, processor_feature
from spa.recipes import sft_updates
from spa.recipes.ppo_losses import ActorLoss
from spa.training.optim import make_optimizer
from spa.training.update import MicroBatching, Trainable, mini_batch, score_logprobs, update
from spa.types import EpisodeBatch, PPOBatch, Prompt, SamplingParams
from spa.worldmodel.sequences import TrainingSequence

CPU = torch.device("cpu")
Work = Callable[[], dict[str, float] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting of one side."""

    size: str  # small or real
    model: str  # a folder, or "random"
    quick: bool


def best_precision(size: str) -> torch.dtype | None:
    """Precision that `dtype: auto` selects for sampling: None is float32."""
    return (
        None if size == "small" or PRECISION[processor_feature()] == "float32" else torch.bfloat16
    )


def training_precision(size: str) -> torch.dtype | None:
    """As in the demo (bfloat16), or what `dtype: auto` means for a real model."""
    return torch.bfloat16 if size == "small" else best_precision(size)


def load(it: Setting) -> Any:
    """The model of a size, as the recipe loads it."""
    if it.size == "small":
        return load_policy("builtin:tiny", attention=attention.register())
    if it.model != "random":
        return load_policy(it.model)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192, attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    return LlamaForCausalLM(shape).eval()


def ours_rollout(it: Setting) -> Work:
    """The local engine, turn by turn."""
    return rollout_work(load(it), rollout_of(it.size, it.quick), best_precision(it.size))


def rollout_work(model: Any, rollout: Rollout, autocast: torch.dtype | None) -> Work:
    """Rollouts of the local engine over a model."""
    vocabulary = model.config.vocab_size
    endless: Any = SimpleNamespace(
        images=None, stop_ids=frozenset({-1}), decode_response=lambda ids: ""
    )
    engine = LocalEngine(model, endless, autocast=autocast)
    sampling = SamplingParams(max_tokens=rollout.response)

    def work() -> None:
        episodes = rollout.prompts(vocabulary)
        for turn in range(rollout.turns):
            prompts = [
                Prompt(
                    episode_id=str(i),
                    messages=(),
                    token_ids=np.asarray(ids, np.int32),
                    prefill="",
                    seed=i * 97 + turn,
                )
                for i, ids in enumerate(episodes)
            ]
            responses = engine.generate(prompts, sampling)
            for ids, response, state in zip(
                episodes, responses, rollout.states(vocabulary, turn), strict=True
            ):
                assert response.token_ids is not None
                ids += response.token_ids.tolist() + state
        engine.forget([str(i) for i in range(len(episodes))])

    return work


def hf_rollout(it: Setting, dtype: torch.dtype) -> Work:
    """`generate` of transformers, which reads the whole conversation at every turn."""
    model = load(it).to(dtype)
    model.set_attn_implementation("sdpa")
    rollout, vocabulary = rollout_of(it.size, it.quick), model.config.vocab_size

    def work() -> None:
        episodes = rollout.prompts(vocabulary)
        for turn in range(rollout.turns):
            ids = torch.tensor(episodes)
            with torch.inference_mode():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, top_p=1.0, pad_token_id=0,
                    min_new_tokens=rollout.response, max_new_tokens=rollout.response,
                )  # fmt: skip
            episodes = [
                row + state
                for row, state in zip(out.tolist(), rollout.states(vocabulary, turn), strict=True)
            ]

    return work


def ours_sft(it: Setting) -> Work:
    """One optimizer step."""
    most = 4096 if it.size == "small" else 1024
    return sft_work(load(it), rows_of(it.size, it.quick), training_precision(it.size), most)


def sft_work(model: Any, rows: Rows, autocast: torch.dtype | None, max_tokens: int) -> Work:
    """Optimizer steps of fine-tuning on a model, with micro-batches of `max_tokens`."""
    limit_kernel_caches()
    batch = [
        TrainingSequence(
            token_ids=np.asarray(ids, np.int32),
            mask=np.arange(len(ids)) >= len(ids) // 2,
            examples=1,
        )
        for ids in rows.batch(model.config.vocab_size)
    ]
    part = Trainable(model=model, optimizer=make_optimizer(model, lr=1e-6), autocast=autocast)
    micro = MicroBatching(max_tokens=max_tokens)
    tokens = float(sum(len(row.token_ids) for row in batch))

    def work() -> dict[str, float]:
        sft_updates.update(part, batch, micro, CPU)
        return {"tokens": tokens}

    return work


def ppo_batch(it: Setting, model: Any) -> PPOBatch:
    """Rows with advantages, as a PPO step has them after its estimator."""
    rows = rows_of(it.size, it.quick).batch(model.config.vocab_size)
    width = max(map(len, rows))
    ids, mask = (
        torch.zeros((len(rows), width), dtype=torch.int64),
        torch.zeros((len(rows), width - 1), dtype=torch.bool),
    )
    for r, row in enumerate(rows):
        ids[r, : len(row)] = torch.tensor(row)
        mask[r, len(row) // 2 : len(row) - 1] = True
    zeros, count = torch.zeros(mask.shape), torch.zeros(len(rows))
    return PPOBatch(
        input_ids=ids, lengths=torch.tensor([len(row) for row in rows]), mask=mask, turns=mask.long() - 1,
        turn_ends=torch.zeros_like(mask), rewards=zeros, scores=count, group_ids=count.long(), tag_ids=count.long(),
        sampler_logprobs=zeros, rl_weights=mask.float(), ce_weights=zeros, episodes=torch.arange(len(rows)),
        starts=count.long(), old_logprobs=zeros, returns=zeros,
        advantages=torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)) * mask,
    )  # fmt: skip


def ours_ppo(it: Setting) -> Work:
    """Scoring, then one epoch of four mini-batches, as in `tiny`."""
    from dataclasses import fields, replace

    from spa.config.load import load_config

    limit_kernel_caches()
    model, cfg = load(it), load_config("tiny")
    part = Trainable(
        model=model, optimizer=make_optimizer(model, lr=1e-6), autocast=training_precision(it.size)
    )
    batch, micro = ppo_batch(it, model), MicroBatching(max_tokens=4096)
    episodes = EpisodeBatch(**{f.name: getattr(batch, f.name) for f in fields(EpisodeBatch)})
    rows = torch.arange(len(batch)).chunk(4)
    loss = ActorLoss(cfg.actor_rollout_ref.actor)

    def work() -> None:
        old = score_logprobs(part, episodes, micro, CPU)
        ready = replace(batch, old_logprobs=old)
        update(part, [mini_batch(ready, picked, "token-mean") for picked in rows], loss, micro, CPU)

    return work


def plain_ppo(it: Setting) -> Work:
    """The textbook: padded rows, all logits of all tokens, in the same precision."""
    model = load(it)
    model.set_attn_implementation("sdpa")
    batch, optimizer = ppo_batch(it, model), torch.optim.AdamW(model.parameters(), lr=1e-6)
    dtype = training_precision(it.size)

    def logprobs(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = batch.input_ids[rows]
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            logits = model(input_ids=ids).logits[:, :-1]
        return logits.float().log_softmax(-1), ids[:, 1:, None]

    def work() -> None:
        with torch.no_grad():
            parts = [logprobs(rows) for rows in torch.arange(len(batch)).chunk(4)]
            old = torch.cat([table.gather(-1, ids)[..., 0] for table, ids in parts])
            del parts
        for rows in torch.arange(len(batch)).chunk(4):
            table, ids = logprobs(rows)
            new, mask = table.gather(-1, ids)[..., 0], batch.mask[rows]
            ratio = (new - old[rows]).exp()
            gain = torch.minimum(
                ratio * batch.advantages[rows], ratio.clamp(0.8, 1.2) * batch.advantages[rows]
            )
            entropy = -(table.detach().exp() * table.detach()).sum(-1)
            loss = -(gain * mask).sum() / mask.sum() + 0 * (entropy * mask).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return work


def limits(it: Setting) -> Work:
    """The machine: matrix products in both precisions, and memory."""
    square = {dtype: torch.randn(1024, 1024).to(dtype) for dtype in (torch.float32, torch.bfloat16)}
    source = torch.randn(2**25)
    target = torch.empty_like(source)

    def fastest(action: Callable[[], Any], repeats: int = 5) -> float:
        action()
        times = []
        for _ in range(repeats):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
        return min(times)

    def work() -> dict[str, float]:
        plain, half = square.values()
        # Some processors multiply float32 faster by oneDNN than by the library that PyTorch prefers.
        onednn = fastest(
            lambda: torch.ops.mkldnn._linear_pointwise(plain, plain, None, "none", [], "")
        )
        return {
            "float32_gflops": 2 * 1024**3 / 1e9 / min(onednn, fastest(lambda: plain @ plain)),
            "bfloat16_gflops": 2 * 1024**3 / 1e9 / fastest(lambda: half @ half),
            "copy_gb_s": 2 * source.nbytes / 1e9 / fastest(lambda: target.copy_(source)),
            "read_gb_s": source.nbytes / 1e9 / fastest(source.sum),
        }  # fmt: skip

    return work


def forward(it: Setting) -> Work:
    """Our sampler's forward pass: tokens per second of reading prompts, seconds of a decode step of 16 rows."""
    model = load(it)
    dtype = best_precision(it.size) or torch.float32
    fused, layers = FusedModel(model, dtype), model.config.num_hidden_layers
    width, steps = (128, 4) if it.quick else (300, 12)
    ids = torch.from_numpy(
        np.random.default_rng(0).integers(5, model.config.vocab_size, size=(16, width))
    )
    mask = torch.zeros((16, 1, width, width), dtype=dtype)
    mask.masked_fill_(torch.ones(width, width).triu(1).bool(), torch.finfo(dtype).min)

    def work() -> dict[str, float]:
        cache = GrowingCache(layers)
        with torch.inference_mode():
            start = time.process_time()
            positions = torch.arange(width).expand(16, width)
            fused(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
            read, times = time.process_time() - start, []
            for step in range(width, width + steps):
                start = time.process_time()
                fused(
                    input_ids=ids[:, :1], attention_mask=torch.zeros((16, 1, 1, step + 1), dtype=dtype),
                    position_ids=torch.full((16, 1), step), past_key_values=cache,
                )  # fmt: skip
                times.append(time.process_time() - start)
        held = sum(p.numel() for p in model.parameters())
        matrices = held - (
            0 if model.config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
        )
        size = torch.finfo(dtype).bits // 8
        inner = matrices - model.get_output_embeddings().weight.numel()
        return {
            "prefill_gflops": 2 * inner * 16 * width / read / 1e9,
            "prefill_tokens_s": 16 * width / read,
            "decode_s": float(np.median(times)),
            "weight_gb": matrices * size / 1e9,
            "parameters": float(held),
        }

    return work


SIDES: dict[str, dict[str, Callable[[Setting], Work]]] = {
    "rollout": {
        "spa": ours_rollout,
        "hf_float32": lambda it: hf_rollout(it, torch.float32),
        "hf_bfloat16": lambda it: hf_rollout(it, torch.bfloat16),
    },
    "sft": {"spa": ours_sft},
    "ppo": {"spa": ours_ppo, "plain": plain_ppo},
    "limits": {"spa": limits},
    "forward": {"spa": forward},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="One side of a row of bench.py; rounds are asked for by lines."
    )
    parser.add_argument("row", choices=SIDES)
    parser.add_argument("side")
    parser.add_argument("size", choices=("small", "real"))
    parser.add_argument("--model", default="random")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    setting = Setting(size=options.size, model=options.model, quick=options.quick)
    serve(SIDES[options.row][options.side](setting))


if __name__ == "__main__":
    main()
