"""Estimate the speed of training and sampling on a machine from a model's shape.

Estimates are accurate to about a factor of two. The speed of training was measured in SFT of
Qwen2.5-0.5B on an H200, and the speed of the local engine on the same GPU
(`benchmarks/results/gpu`). For other GPUs, both are scaled by the data sheets. The speed of vLLM is
assumed.
"""

import time
from dataclasses import dataclass
from functools import cache
from math import ceil, inf

import torch

from spa.models import memory
from spa.models.memory import FULL, HALF, ModelShape

# Packed SFT on the H200 takes 0.160 s for a micro-batch of 2,048 tokens and 0.268 s for 8,192. This
# corresponds to a fixed time per layer and micro-batch, plus a time per token at 17 % of the data
# sheet's FLOP/s.
LAYER_S = 0.0052
TRAIN_SHARE = 0.17
# Slowdown by gradient checkpointing: from 13,349 to 7,305 tokens/s on an H100.
RECOMPUTED = 1.8
# Share of the memory bandwidth that a decoding step of 256 sequences reaches on the H200.
LOCAL_SHARE = 0.049
# Assumed for vLLM: a share of the bandwidth, and a fixed time per decoded token.
VLLM_SHARE = 0.5
VLLM_STEP_S = 0.002
# One core of an AMD EPYC (`benchmarks/results/bench.json`): the shares of its matrix speed that SFT
# and a decoding step of 16 sequences reach, and additional seconds per layer.
CPU_TRAIN_SHARE = 0.39
CPU_DECODE_SHARE = 0.3
CPU_LAYER_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Data-sheet values of a GPU."""

    name: str
    memory_gb: float
    flops: float  # FLOP/s of dense bfloat16 products
    bandwidth: float  # bytes/s of the GPU's memory
    link: float  # bytes/s to another GPU of the same machine


# Common GPUs, by memory size. If only the memory is known, the first GPU of the nearest size is
# assumed.
CARDS = (
    Card(name="T4", memory_gb=16, flops=65e12, bandwidth=0.32e12, link=10e9),
    Card(name="RTX 4090", memory_gb=24, flops=165e12, bandwidth=1.01e12, link=20e9),
    Card(name="RTX 3090", memory_gb=24, flops=71e12, bandwidth=0.94e12, link=20e9),
    Card(name="L4", memory_gb=24, flops=121e12, bandwidth=0.3e12, link=20e9),
    Card(name="A10", memory_gb=24, flops=125e12, bandwidth=0.6e12, link=20e9),
    Card(name="RTX 5090", memory_gb=32, flops=210e12, bandwidth=1.79e12, link=40e9),
    Card(name="A100", memory_gb=40, flops=312e12, bandwidth=1.56e12, link=300e9),
    Card(name="L40S", memory_gb=48, flops=362e12, bandwidth=0.86e12, link=20e9),
    Card(name="A6000", memory_gb=48, flops=155e12, bandwidth=0.77e12, link=20e9),
    Card(name="H100", memory_gb=80, flops=989e12, bandwidth=3.35e12, link=300e9),
    Card(name="A100", memory_gb=80, flops=312e12, bandwidth=2.04e12, link=300e9),
    Card(name="H200", memory_gb=141, flops=989e12, bandwidth=4.8e12, link=300e9),
    Card(name="B200", memory_gb=192, flops=2250e12, bandwidth=8e12, link=600e9),
)


def card_for(memory_gb: float, name: str = "") -> Card:
    """Return the GPU that CUDA calls `name`, or else the first one of the nearest memory size."""
    named = [card for card in CARDS if card.name in name] if name else []
    return min(named or CARDS, key=lambda card: abs(card.memory_gb - memory_gb))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Speed of a machine: the number of its processes, and the speed of each."""

    ranks: int  # number of processes
    train_flops: float  # FLOP/s of matrix products in training
    layer_s: float  # additional seconds per layer of a micro-batch
    read: float  # bytes/s at which decoding reads weights and KV cache
    decode_flops: float = inf  # FLOP/s of decoding
    step_s: float = 0.0  # additional seconds of a decoding step
    decode_layer_s: float = 0.0  # additional seconds of a decoding step, per layer
    link: float = inf  # bytes/s between GPUs
    source: str  # description of how the numbers were obtained

    def train_seconds(
        self,
        shape: ModelShape,
        tokens: float,
        micro: int,
        *,
        forward_only: bool = False,
        recomputed: bool = False,
        shards: int = 1,
    ) -> float:
        """Return the seconds of forward and backward passes over `tokens` tokens in micro-batches
        of `micro` tokens. The tokens are split over the ranks. `recomputed` means gradient
        checkpointing, and `shards` is the number of GPUs over which the model is sharded."""
        own = tokens / self.ranks
        passes = ceil(own / micro)
        seconds = (
            passes * shape.layers * self.layer_s + own * 6 * shape.parameters / self.train_flops
        )
        # A backward pass costs twice as much as a forward pass.
        seconds *= 1 / 3 if forward_only else RECOMPUTED if recomputed else 1
        # Shards are gathered in bfloat16 for each pass, and gradients are summed in float32.
        moved = shape.parameters * (HALF if forward_only else 2 * HALF + FULL)
        return seconds + passes * moved * (shards - 1) / shards / self.link

    def decode_seconds(
        self, shape: ModelShape, sequences: int, length: float, tokens: float, at_a_time: int
    ) -> float:
        """Return the seconds of sampling `tokens` tokens in each of `sequences` conversations,
        whose mean length is `length` tokens. Each rank samples at most `at_a_time` conversations at
        once."""
        own = ceil(sequences / self.ranks)
        rows = min(own, at_a_time)
        read = HALF * shape.parameters + memory.cache(shape, rows, round(length))
        step = (
            self.step_s
            + shape.layers * self.decode_layer_s
            + max(read / self.read, 2 * shape.parameters * rows / self.decode_flops)
        )
        return ceil(own / rows) * tokens * step


def gpus(card: Card, count: int, *, vllm: bool) -> Machine:
    """Return the speed of a machine with `count` of these GPUs. It samples with vLLM if `vllm` is
    True, otherwise with the local engine."""
    engine = "with vLLM at an assumed speed" if vllm else "with the local engine before CUDA graphs"
    return Machine(
        ranks=count,
        train_flops=TRAIN_SHARE * card.flops,
        layer_s=LAYER_S,
        read=(VLLM_SHARE if vllm else LOCAL_SHARE) * card.bandwidth,
        step_s=VLLM_STEP_S if vllm else 0.0,
        link=card.link,
        source=f"not measured: from Qwen2.5-0.5B on an H200, scaled to the data sheet of the "
        f"{card.name}, {engine}",
    )


@cache
def this_cpu(dtype: torch.dtype, threads: int) -> Machine:
    """Measure the speed of this machine's CPU by a few matrix products on one thread, scaled to
    `threads` threads. This takes a fraction of a second. Only CPU time counts, so that other work
    on a busy machine does not distort the result."""
    size = 1024
    a, b = torch.ones(2, size, size, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.mm(a, b)  # warm-up
        began = time.process_time()
        for _ in range(5):
            torch.mm(a, b)
        flops = 5 * 2 * size**3 / (time.process_time() - began) * threads
    finally:
        torch.set_num_threads(before)
    return Machine(
        ranks=1,
        train_flops=CPU_TRAIN_SHARE * flops,
        layer_s=CPU_LAYER_S,
        read=inf,
        decode_flops=CPU_DECODE_SHARE * flops,
        decode_layer_s=CPU_LAYER_S,
        source=f"not measured: from SmolLM2 on one core of an AMD EPYC, scaled to the "
        f"{flops / 1e9:.0f} GFLOP/s of matrix products here, {threads} thread{'s' if threads > 1 else ''}",
    )
