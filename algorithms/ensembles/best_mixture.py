"""Optimal mixture of fixed distributions under the log loss: the reference optimum for
a learned ensemble.

``min_alpha -sum_y f(y) log(sum_k alpha_k h_k(y))`` over the simplex is convex.
Expectation maximisation multiplies every weight by ``g_k = sum_y f(y) h_k(y) /
h_alpha(y)``; it needs no step size and never leaves the simplex. The loss exceeds the
optimum by at most ``log max_k g_k``, which certifies the result.

Source: Cover, "An Algorithm for Maximizing Expected Log Investment Return", IEEE
Transactions on Information Theory, 1984, DOI 10.1109/TIT.1984.1056869 (log-optimal
portfolios, the same problem).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def best_mixture(
    outputs: Floats, weights: Floats, tolerance: float = 1e-4, max_steps: int = 5000
) -> tuple[NDArray[np.float64], float, float]:
    """Return (alpha (q,), its loss, an upper bound on the loss minus the optimum).

    ``outputs`` (q, m) > 0: the probability each predictor assigns to each outcome;
    ``weights`` (m,): the frequencies of the outcomes, summing to 1. Stops when the
    bound is at most ``tolerance``, or after ``max_steps``.
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
