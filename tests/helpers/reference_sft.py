"""Frozen rows, a small Llama and settings for whole fine-tuning steps beside TRL's trainer. benchmarks/parity/trl_sft.py
writes tests/golden/trl_sft.json from them.
"""

from dataclasses import dataclass

import numpy as np
from helpers.reference_updates import SIZES, fill
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, LR, BETAS, CLIP = 64, 1e-2, (0.9, 0.999), 1.0
ROWS, BATCH = 22, 8  # three steps an epoch, the last of them with six rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTCase:
    """One way to fine-tune, in TRL's words. `micro` rows per pass; a batch is BATCH rows."""

    micro: int = 2
    epochs: int = 2
    warmup: int = 2  # steps
    scheduler: str = "cosine"  # cosine | constant_with_warmup
    weight_decay: float = 0.0
    eps: float = 1e-5  # large enough for gradients that are nothing but rounding to move little

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return -(-ROWS // BATCH) * self.epochs


CASES: dict[str, SFTCase] = {
    "cosine": SFTCase(),
    "no_warmup": SFTCase(warmup=0),
    "constant": SFTCase(scheduler="constant_with_warmup", warmup=3),
    "rows_one_by_one": SFTCase(micro=1, epochs=1),
    "weight_decay": SFTCase(weight_decay=0.1),
    "usual_epsilon": SFTCase(eps=1e-8),
}


@dataclass(frozen=True, slots=True)
class FrozenRow:
    """Token ids of a conversation, and which of them are targets."""

    ids: tuple[int, ...]
    targets: tuple[bool, ...]


def frozen_rows() -> list[FrozenRow]:
    """Rows of 6 to 30 tokens with one to three responses in each, so that micro-batches have very different numbers of
    targets; in the first row the first token is one too, which nothing predicts."""
    rng = np.random.default_rng(11)
    rows = []
    for number in range(ROWS):
        length = int(rng.integers(6, 31))
        targets = np.zeros(length, dtype=bool)
        for _ in range(int(rng.integers(1, 4))):
            start = int(rng.integers(1, length - 1))
            targets[start : start + int(rng.integers(1, 9))] = True
        targets[0] = number == 0
        ids = rng.integers(1, VOCABULARY, length)
        rows.append(FrozenRow(tuple(int(i) for i in ids), tuple(bool(t) for t in targets)))
    return rows


def small_llama() -> LlamaForCausalLM:
    """A Llama of two layers in float32 whose weights come from NumPy's generator alone."""
    config = LlamaConfig(
        **SIZES,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    return fill(LlamaForCausalLM(config).float(), seed=5)
