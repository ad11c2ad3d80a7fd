"""An advantage estimator of your own: each episode against the mean of its batch.

spa run tiny --stages ppo algorithm.adv_estimator=custom_advantage:centred
spa run tiny --stages ppo algorithm.adv_estimator=custom_advantage:centred_and_whitened
"""

import torch

from spa.algo.estimators import Estimator
from spa.types import ScoredBatch


def centred(
    batch: ScoredBatch, rewards: torch.Tensor, *, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """gamma times the episode's reward, minus the batch's mean, on every sampled token; twice [B, A]."""
    outcomes = torch.where(batch.mask, rewards, 0.0).sum(dim=1) * gamma
    advantages = torch.where(batch.mask, (outcomes - outcomes.mean())[:, None], 0.0)
    return advantages, advantages


centred_and_whitened = Estimator(function=centred, settings=("gamma",), whitened=True)
