"""Mirror descent on the simplex: a gradient step in the dual space of a mirror map F,
followed by a Bregman projection.

``grad F(v) = grad F(alpha) - rate * gradient``, then v is projected onto the simplex in
the Bregman divergence of F. Two maps: negative entropy (multiplicative weights,
computed on logarithms so that nothing overflows) and half the squared Euclidean norm.
Both project onto ``{w : w_k >= floor, sum w = 1}``, exactly and in O(q log q); floor 0
is the simplex itself. A step with a negative rate is ascent.

Sources: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, Figures 1 and 2 (lines "v" and "BP"); Bubeck, "Convex
Optimization: Algorithms and Complexity", 2015, arXiv 1405.4980, chapter 4. Projection
by sorting: Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient Projections onto the
l1-Ball for Learning in High Dimensions", ICML 2008, DOI 10.1145/1390156.1390191, Figure
1.
"""

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Tolerated distance of a sum of probabilities from 1: enough for large float32 tables,
# too little for a forgotten normalisation.
TOLERANCE = 1e-5
# exp(-690) is 1e-300: a positive weight stays positive whatever the gradient, so that a
# later gradient can raise it again.
LOWEST_LOG_WEIGHT = -690.0


def entropy_step(alpha: ArrayLike, gradient: ArrayLike, rate: float, floor: float = 0.0) -> Array:
    """Return the weights (q,) after one step of exponentiated gradient from ``alpha``
    (q,), each at least ``floor``.

    Without a floor this is ``alpha_k exp(-rate * gradient_k)`` divided by its sum, and
    a weight of exactly 0 stays 0. Raises ``ValueError`` if ``alpha`` is not a
    distribution or the gradient is not finite or has another length.
    """
    weights, move = _checked(alpha, gradient, rate)
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    return project_simplex_entropy(log_weights - move, floor)


def euclidean_step(alpha: ArrayLike, gradient: ArrayLike, rate: float, floor: float = 0.0) -> Array:
    """Return the weights (q,) after one projected gradient step from ``alpha`` (q,),
    each at least ``floor``; see entropy_step.
    """
    weights, move = _checked(alpha, gradient, rate)
    return project_simplex(weights - move, floor)


class Step(Protocol):
    """One step of mirror descent."""

    def __call__(
        self, alpha: ArrayLike, gradient: ArrayLike, rate: float, floor: float = 0.0
    ) -> Array:
        """Return the weights after one step."""


MIRRORS: dict[str, Step] = {"entropy": entropy_step, "euclidean": euclidean_step}


def project_simplex(v: ArrayLike, floor: float = 0.0) -> Array:
    """Return ``argmin ||w - v||^2`` over ``w_k >= floor, sum w = 1``: ``max(v - tau,
    floor)`` with tau such that the sum is 1.

    ``v`` (q,) must be finite. By sorting (Duchi et al., Figure 1).
    """
    values = _vector("v", v)
    mass = _free_mass(len(values), floor)
    # The result is invariant to shifts of v, and entries more than the mass below the
    # largest end up at the floor in any case: shifting and cutting v first loses
    # nothing to rounding, however large v is.
    above = np.maximum(values - values.max(), -mass)
    ordered = np.sort(above)[::-1]
    taus = (np.cumsum(ordered) - mass) / np.arange(1, len(values) + 1)
    # the condition holds for a prefix of the sorted entries only
    free = int(np.count_nonzero(ordered > taus))
    tau = taus[max(free, 1) - 1]
    return np.asarray(np.maximum(above - tau, 0.0) + floor)


def project_simplex_entropy(log_v: ArrayLike, floor: float = 0.0) -> Array:
    """Return ``argmin sum_k w_k log(w_k / v_k)`` over ``w_k >= floor, sum w = 1``:
    ``max(c v, floor)``, c such that the sum is 1.

    ``log_v`` (q,): log-weights of any magnitude; -inf is a weight of 0, and at least
    one must be larger. Positive weights are kept at 1e-300 or above.
    """
    logs = np.asarray(log_v, np.float64)
    if logs.ndim != 1 or len(logs) == 0 or np.isnan(logs).any() or not np.isfinite(logs.max()):
        raise ValueError(
            f"log_v of shape {logs.shape}: must be one row of log-weights, none NaN or +inf and "
            "not all -inf"
        )
    mass = _free_mass(len(logs), floor)
    v = np.where(np.isneginf(logs), 0.0, np.exp(np.maximum(logs - logs.max(), LOWEST_LOG_WEIGHT)))
    if floor == 0:
        return np.asarray(v / v.sum())
    ordered = np.sort(v)[::-1]
    counts = np.arange(1, len(v) + 1)
    # With the k largest free, the others take (q - k) floor, and c scales the free ones
    # to the remaining mass.
    scales = (mass + counts * floor) / np.cumsum(ordered)
    free = int(np.count_nonzero(scales * ordered > floor))
    return np.asarray(np.maximum(scales[max(free, 1) - 1] * v, floor))


def check_distribution(name: str, values: ArrayLike) -> Array:
    """Return ``values`` as float64; raise ``ValueError`` unless they are a vector of
    non-negative numbers that sum to 1.
    """
    row = _vector(name, values)
    if row.min() < 0:
        raise ValueError(f"{name} holds {row.min():g}: a distribution has no negative entry")
    total = float(row.sum())
    if abs(total - 1) > TOLERANCE:
        raise ValueError(f"{name} sums to {total:g}: a distribution sums to 1; divide by the sum")
    return row


def _free_mass(count: int, floor: float) -> float:
    """Return the mass that remains after each of ``count`` weights has received the
    floor.
    """
    if not 0 <= floor * count <= 1 + 1e-12:
        raise ValueError(
            f"floor = {floor}, but {count} weights share a sum of 1: choose a floor in [0, "
            f"{1 / count:g}]"
        )
    return max(0.0, 1 - floor * count)


def _vector(name: str, values: ArrayLike) -> Array:
    row = np.asarray(values, np.float64)
    if row.ndim != 1 or len(row) == 0:
        raise ValueError(f"{name} has shape {row.shape}: must be one row, at least one entry")
    if not np.isfinite(row).all():
        raise ValueError(
            f"{name} has {np.count_nonzero(~np.isfinite(row))} entries that are not finite: leave "
            "it out"
        )
    return row


def _checked(alpha: ArrayLike, gradient: ArrayLike, rate: float) -> tuple[Array, Array]:
    """Return the checked weights and ``rate * gradient``."""
    weights, slope = check_distribution("alpha", alpha), _vector("gradient", gradient)
    if weights.shape != slope.shape:
        raise ValueError(
            f"{len(weights)} weights, but a gradient of {len(slope)}: give one entry per weight"
        )
    with np.errstate(over="ignore"):
        return weights, _vector("rate * gradient", rate * slope)
