"""AAggFF's responses: client losses mapped to [C1, C2] by a distribution function; and
the decision loss of client weights.

``r_i = C1 + (C2 - C1) CDF(F_i / mean F)`` is bounded for any losses and depends only on
their ratios; the decision loss is ``-log(1 + <p, r>)``.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III, Definitions 3.3
(3.3) and 3.4 (3.8), section 5.1 and Table 3.3.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.options import check_choice, check_range

Array = NDArray[np.float64]


def _frechet(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(-1 / x))


def _normal(x: Array) -> Array:
    # erf, not erfc: with erfc the function would decrease, and the clients with the
    # smallest losses would gain weight.
    return np.array([0.5 * (1 + math.erf(value)) for value in (x - 1) / math.sqrt(2)])


#: A loss counts as at most this many times the scale of :func:`cut`.
MOST_LOSS = 5.0
# Distribution functions of section 5.1 for x >= 0, with scale and location 1.
CDFS: dict[str, Callable[[Array], Array]] = {
    "weibull": lambda x: 1 - np.exp(-(x**2)),
    "frechet": _frechet,
    "gumbel": lambda x: np.exp(-np.exp(-(x - 1))),
    "exponential": lambda x: 1 - np.exp(-x),
    "logistic": lambda x: 1 / (1 + np.exp(-(x - 1))),
    "normal": _normal,
}


def respond(losses: ArrayLike, cdf: str, low: float, high: float) -> Array:
    """Return the responses (n,) in [low, high] of ``losses`` (n,), non-negative and
    finite, by the distribution named ``cdf`` (3.8).

    Equal losses give equal responses, also if all are 0. Raises ``ValueError`` for an
    unknown distribution, ``low >= high``, no losses, or a loss that is negative or not
    finite.
    """
    check_choice("cdf", cdf, CDFS)
    check_bounds(low, high)
    values = check_losses(losses)
    top = values.max()
    # Divided by the largest first: the mean of losses near the largest float would
    # overflow.
    relative = values / top if top > 0 else np.ones_like(values)
    return np.asarray(
        np.clip(low + (high - low) * CDFS[cdf](relative / relative.mean()), low, high)
    )


def cut(losses: ArrayLike, scale: float) -> tuple[Array, float]:
    """Return the losses (n,), none above ``MOST_LOSS`` times the scale, and the scale:
    the largest median of any round so far, ``scale`` being that of the rounds before
    (0: none), and at least 1.

    The loss that a client reports cannot be verified, but its size is known: models
    start at the loss of one that knows nothing, about log(classes) for a cross-entropy
    and 1 for standardised numbers, which is much the same for all clients, and training
    lowers it. So the largest median stays that of the start, and a client far above it
    has diverged, or lies. The bound is not relative to the median of the round, which
    falls: fair methods exist for the clients whose losses do not. If more than half of
    a round's clients are sound, so is its median.
    """
    values = check_losses(losses)
    scale = max(scale, float(np.median(values)), 1.0)
    return np.minimum(values, MOST_LOSS * scale), scale


def decision_loss(p: ArrayLike, r: ArrayLike) -> float:
    """Return ``-log(1 + <p, r>)``, the loss of the decision ``p`` (n,) under the
    responses ``r`` (n,) (3.3).
    """
    return -math.log1p(float(np.dot(p, r)))


def decision_gradient(p: ArrayLike, r: ArrayLike) -> Array:
    """Return the gradient (n,) of :func:`decision_loss` in ``p``: ``-r / (1 + <p,
    r>)``.
    """
    return np.asarray(-np.asarray(r, np.float64) / (1 + np.dot(p, r)))


def check_bounds(low: float, high: float) -> None:
    """Raise ``ValueError`` unless ``0 <= low < high``, the bounds C1 and C2 of the
    responses.
    """
    check_range("low (C1)", low, 0)
    check_range("high (C2)", high, 0, open_low=True)
    if low >= high:
        raise ValueError(
            f"low (C1) = {low:g} and high (C2) = {high:g}: responses need a range, choose C1 < C2"
        )


def check_losses(losses: ArrayLike) -> Array:
    """Return ``losses`` as float64 (n,), n > 0; raise ``ValueError`` unless all are
    finite and non-negative.
    """
    values = np.asarray(losses, np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"losses have shape {values.shape}: must be one row, at least one entry")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        raise ValueError(
            f"losses hold {values[bad][0]:g}: must be finite and non-negative; leave that client "
            "out"
        )
    return values
