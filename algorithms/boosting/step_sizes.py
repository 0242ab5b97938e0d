"""Steps of boosting in function space: their sizes, their combined result, and the
clipping bounds. Numbers, no tensors.

Sources: as in ``algorithms.boosting.functional``.
"""

import math
from collections.abc import Sequence

#: Names of ``algorithms.boosting.functional.LOSSES``, for code that selects a loss but
#: does not compute it.
LOSS_NAMES = ("cross-entropy", "square")
SCHEDULES = ("decay", "homogeneous", "general")


def step_sizes(
    schedule: str, t: int, local_steps: int, mu: float, eta_0: float, eta_max: float
) -> list[float]:
    """Return eta^{k,t} for k = 1..K of round t = 0, 1, ...; never above ``eta_max``,
    and mu eta never above 1.

    decay: eta_0 / (K t + k + 1), as in the experiments; homogeneous: 2 / (mu (K t + k +
    1)), for equal marginals of the features; general: 4 / (mu (K t + k + 1)).
    """
    top = {
        "decay": eta_0,
        "homogeneous": 2 / mu if mu else math.inf,
        "general": 4 / mu if mu else math.inf,
    }[schedule]
    limit = min(eta_max, 1 / mu if mu else math.inf)
    return [min(limit, top / (local_steps * t + k + 1)) for k in range(1, local_steps + 1)]


def summed_steps(etas: Sequence[float], mu: float) -> tuple[float, list[float]]:
    """Return (c, a) with ``g^{K+1} = c f - sum_k a_k h^k``, the result of K steps ``g
    <- g - eta_k (h^k + mu g)`` from f.
    """
    shrink, coefficients = 1.0, [0.0] * len(etas)
    for k in reversed(range(len(etas))):
        coefficients[k] = etas[k] * shrink
        shrink *= 1 - mu * etas[k]
    return shrink, coefficients


def clip_bounds(gradient_bound: float, gamma: float) -> tuple[float, float]:
    """Return the bounds (G^2, G^1) = ((2 - gamma) G / gamma, (1 - gamma) G / gamma) for
    gradients up to G and an edge gamma.
    """
    return (2 - gamma) * gradient_bound / gamma, (1 - gamma) * gradient_bound / gamma
