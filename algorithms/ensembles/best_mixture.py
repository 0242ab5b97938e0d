"""The best mixture of fixed distributions under the log loss: the optimum against which a learnt ensemble is measured.

``min_alpha -sum_y f(y) log(sum_k alpha_k h_k(y))`` over the simplex is convex. Expectation maximisation multiplies every weight by
``g_k = sum_y f(y) h_k(y) / h_alpha(y)``; it needs no step size and never leaves the simplex, and since the loss minus the optimum is at
most ``log max_k g_k``, the answer carries its own certificate (Cover 1984, on log-optimal portfolios: the same problem).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def best_mixture(
    outputs: Floats, weights: Floats, tolerance: float = 1e-4, max_steps: int = 5000
) -> tuple[NDArray[np.float64], float, float]:
    """Return (alpha (q,), its loss, a bound on how far that is above the optimum).

    ``outputs`` (q, m) > 0: the probability each predictor gives each outcome; ``weights`` (m,): how often it occurs, sums to 1. Ends
    when the bound is below ``tolerance``, or after ``max_steps``.
    """
    alpha = np.full(len(outputs), 1 / len(outputs))
    mixture, bound = alpha @ outputs, np.inf
    for _ in range(max_steps):
        ratio = outputs @ (weights / mixture)
        bound = max(0.0, float(np.log(ratio.max())))
        if bound <= tolerance:
            break
        alpha = alpha * ratio
        alpha /= alpha.sum()
        mixture = alpha @ outputs
    return alpha.astype(np.float64), float(-(weights @ np.log(mixture))), bound
