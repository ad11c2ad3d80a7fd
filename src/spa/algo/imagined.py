"""Advantages from the predicted values of plans, scaled by their agreement with observed values
(after WM-PPO, arXiv 2611.12200; reconstructed). The equation is in docs/methods.md."""

from collections.abc import Sequence

import numpy as np


def agreement(imagined: Sequence[float], real: Sequence[float]) -> float:
    """Return the weight of predicted values: the correlation between predicted (`imagined`) and
    observed (`real`) values of the chosen plans. A negative or undefined correlation gives 0.

    Example: agreement([0, 1, 0, 1], [0, 1, 0, 0]) == 0.577...
    """
    pairs = np.asarray([imagined, real], dtype=np.float64)
    if pairs.shape[1] < 2 or (pairs.std(axis=1) < 1e-12).any():
        return 0.0
    one, other = (pairs - pairs.mean(axis=1, keepdims=True)) / pairs.std(axis=1, keepdims=True)
    # Predictions that are worse than chance get the weight 0 instead of a negative one.
    return max(0.0, float((one * other).mean()))


def lead(worths: Sequence[float], taken: int) -> float:
    """Return the predicted value of the chosen plan minus the mean over all predicted plans; 0 for
    a single plan. `taken` is the index of the chosen plan in `worths`."""
    return float(worths[taken] - np.mean(worths))
