"""Frozen batches and small models for whole updates beside a reference: the same inputs on both sides, and the numbers
that are compared. benchmarks/parity/verl_updates.py writes tests/golden/verl_updates.json from them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForTokenClassification

from spa.models.forward import Critic

ROWS, PROMPT, RESPONSE, VOCABULARY = 16, 5, 19, 64
STEPS = 3  # PPO steps of a case, each with fresh rewards
WEIGHT_DECAY, BETAS = 0.01, (0.9, 0.999)
PLACES = 4  # entries of each parameter's change that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to update. `mini` rows per optimizer step, all of them in one forward pass."""

    estimator: str = "gae"  # gae | grpo | grpo_no_std
    mini: int = 8
    epochs: int = 2
    loss_agg_mode: str = "token-mean"
    entropy_coeff: float = 0.0
    kl_loss_coef: float = 0.0
    kl_loss_type: str = "low_var_kl"
    kl_in_reward: float = 0.0
    clip: tuple[float, float, float] = (0.2, 0.28, 3.0)
    cosine: bool = False
    warmup: int = 0  # PPO steps
    gamma: float = 1.0
    lam: float = 1.0
    lr: float = 1e-2

    @property
    def on_policy(self) -> bool:
        """One update a step: verl then takes the policy's present log-probs as the old ones, noise or not."""
        return self.mini == ROWS and self.epochs == 1


CASES: dict[str, Case] = {
    "gae": Case(),
    "gae_discounted": Case(gamma=0.97, lam=0.9),
    "grpo": Case(estimator="grpo", epochs=1),
    "grpo_no_std": Case(estimator="grpo_no_std"),
    "one_update": Case(mini=16, epochs=1),
    "sequence_means": Case(loss_agg_mode="seq-mean-token-mean"),
    "sequence_sums": Case(loss_agg_mode="seq-mean-token-sum"),
    "entropy": Case(entropy_coeff=0.02),
    "kl_in_loss": Case(kl_loss_coef=0.1),
    "kl_in_loss_mse": Case(kl_loss_coef=0.1, kl_loss_type="mse"),
    "kl_in_reward": Case(kl_in_reward=0.05),
    "tight_clip_many_epochs": Case(clip=(0.05, 0.05, 1.5), epochs=4),
    "cosine": Case(cosine=True, epochs=1),
    "warmup": Case(warmup=2, epochs=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticCase:
    """One way to update the critic. `clip`: of values around the old ones; None does not clip."""

    clip: float | None = None
    mini: int = 8
    epochs: int = 2
    loss_agg_mode: str = "token-mean"
    cosine: bool = False
    warmup: int = 0
    gamma: float = 1.0
    lam: float = 1.0
    lr: float = 1e-3  # at the policy's, rounding grows from update to update


CRITIC_CASES: dict[str, CriticCase] = {
    "critic_unclipped": CriticCase(),
    "critic_clipped": CriticCase(clip=0.5),
    "critic_tight_clip_many_epochs": CriticCase(clip=0.05, epochs=4),
    "critic_one_update": CriticCase(mini=16, epochs=1),
    "critic_small_mini_batches": CriticCase(clip=0.2, mini=4),
    "critic_sequence_means": CriticCase(clip=0.5, loss_agg_mode="seq-mean-token-mean"),
    "critic_sequence_sums": CriticCase(loss_agg_mode="seq-mean-token-sum"),
    "critic_discounted_cosine": CriticCase(clip=0.5, gamma=0.97, lam=0.9, cosine=True),
    "critic_warmup": CriticCase(clip=0.5, warmup=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What a step of a case is given, as NumPy arrays. Response-aligned arrays are [ROWS, RESPONSE]."""

    ids: np.ndarray  # int64 [ROWS, PROMPT + RESPONSE], padded with 0 on the right
    lengths: np.ndarray  # int64 [ROWS], prompt included
    mask: np.ndarray  # bool: sampled response tokens
    rewards: np.ndarray  # float32
    values: np.ndarray  # float32
    groups: np.ndarray  # int64 [ROWS]
    noise: np.ndarray  # float32: what is added to the model's own numbers to make old and reference log-probs, and old values


def frozen(step: int) -> Frozen:
    """The batch of a step: three turns a row, the environment's tokens between them."""
    rng = np.random.default_rng(100 + step)
    lengths = rng.integers(PROMPT + 9, PROMPT + RESPONSE + 1, ROWS)
    inside = np.arange(RESPONSE)[None] < (lengths - PROMPT)[:, None]
    turn = np.arange(RESPONSE)[None] // 3  # response, environment, response, ...
    mask = inside & (turn % 2 == 0)
    ids = rng.integers(1, VOCABULARY, (ROWS, PROMPT + RESPONSE))
    ids[:, PROMPT:][~inside] = 0
    rewards = np.zeros((ROWS, RESPONSE), dtype=np.float32)
    last = RESPONSE - 1 - mask[:, ::-1].argmax(axis=1)
    rewards[np.arange(ROWS), last] = rng.normal(size=ROWS)
    return Frozen(
        ids=ids,
        lengths=lengths,
        mask=mask,
        rewards=rewards,
        values=(rng.normal(size=mask.shape) * 0.5 * mask).astype(np.float32),
        groups=np.arange(ROWS) // 4,
        noise=(rng.normal(size=(3, *mask.shape)) * 0.2).astype(np.float32),
    )


def reference_model(vocabulary: int = VOCABULARY, *, seed: int = 7) -> Qwen2ForCausalLM:
    """A Qwen2 of two layers in float32 whose weights come from NumPy's generator alone."""
    return fill(Qwen2ForCausalLM(_config(vocabulary)).float(), seed=seed)


def reference_critic(vocabulary: int = VOCABULARY) -> Qwen2ForTokenClassification:
    """The same with a head of one number per token, which is what verl makes a critic of."""
    return fill(Qwen2ForTokenClassification(_config(vocabulary)).float(), seed=8)


def our_critic(vocabulary: int = VOCABULARY) -> Critic:
    """`reference_critic` in our clothes: the same body, the same head."""
    theirs = reference_critic(vocabulary)
    critic = Critic(theirs.model)
    critic.value_head.load_state_dict(theirs.score.state_dict())
    return critic


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
"""Of the models that are updated on both sides."""


def _config(vocabulary: int) -> Qwen2Config:
    return Qwen2Config(
        **SIZES,
        vocab_size=vocabulary,
        max_position_embeddings=512,
        num_labels=1,
        classifier_dropout=0.0,
    )


def fill(model: Any, *, seed: int) -> Any:
    """The model with weights from NumPy's generator, norms near 1."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            sampled = rng.normal(size=tuple(parameter.shape)) * (0.02 if "norm" in name else 0.2)
            parameter.copy_(torch.from_numpy(sampled.astype(np.float32)))
            if "norm" in name:
                parameter.add_(1.0)
    return model


def change(model: Any, before: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """How each parameter differs from `before`: the length of the change, and its first entries."""
    out = {}
    for name, parameter in model.named_parameters():
        delta = (parameter.detach() - before[name]).double().flatten()
        out[name] = [float(delta.norm()), *delta[:PLACES].tolist()]
    return out


def weights(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
