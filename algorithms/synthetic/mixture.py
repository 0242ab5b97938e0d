"""The server's part of energies: how clients' signals mix, and how far the samples
move. NumPy alone.

Source: Hahn 2024 (dissertation), Chapter IV, equations 4.11, 4.13 and 4.14; see
``algorithms.synthetic.energies``.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_choice
from fedapps.algorithms.common.robust import shortening

#: A client's gradient is at most this many times longer than the median one; those of
#: honest clients with unlike data differed by a quarter.
MOST = 2.0
SCHEDULES = ("cosine", "ddpm")
WEIGHTS = ("sign", "exponential")
Numbers = NDArray[np.float32]


def log_weights(energies: NDArray[np.floating], kind: str = "sign") -> Numbers:
    """Return ``log e``: ``sgn(-E)``, so that e is 1/e, 1 or e, or ``-E`` itself
    ("exponential").
    """
    check_choice("weights", kind, WEIGHTS)
    return np.asarray(np.sign(-energies) if kind == "sign" else -energies, np.float32)


def bounded_signals(
    logs: Sequence[NDArray[np.floating]], gradients: Sequence[NDArray[np.floating]], kind: str
) -> tuple[list[NDArray[np.floating]], list[NDArray[np.floating]]]:
    """Return the ``log e`` (m,) and gradients (m, ...) of the clients within their
    bounds.

    With signs, log e is -1, 0 or 1. A net's energy has no largest gradient, but all
    clients train nets of about one slope: over all samples, the gradient of none is
    longer than ``MOST`` times the median client's.
    """
    if kind == "sign":
        logs = [np.clip(log, -1, 1) for log in logs]
    factors = shortening(np.array([np.linalg.norm(gradient) for gradient in gradients]), MOST)
    return list(logs), [
        gradient if factor == 1 else gradient * gradient.dtype.type(factor)
        for gradient, factor in zip(gradients, factors, strict=True)
    ]


def mixture_gradient(
    logs: Sequence[NDArray[np.floating]],
    gradients: Sequence[NDArray[np.floating]],
    shares: Sequence[float],
) -> NDArray[np.float64]:
    """Return the gradient (m, ...) of the mixture's energy, equation (4.13).

    Of client i: ``logs[i]`` (m,) = log e_i, ``gradients[i]`` (m, ...), ``shares[i]`` =
    w_i > 0. Sums run in the order given.
    """
    exponents = np.stack(
        [
            np.asarray(log, np.float64) + math.log(share)
            for log, share in zip(logs, shares, strict=True)
        ]
    )
    weights = np.exp(exponents - exponents.max(0))  # of the largest 1: only ratios count
    weights /= weights.sum(0)
    total = np.zeros(np.shape(gradients[0]))
    for weight, gradient in zip(weights, gradients, strict=True):
        total += weight.reshape(-1, *[1] * (total.ndim - 1)) * gradient
    return total


def server_step(
    x: Numbers,
    gradient: NDArray[np.floating],
    noise: NDArray[np.floating],
    beta: float,
    delta: float,
    low: float,
    high: float,
) -> Numbers:
    """Return the samples of the next round, equation (4.14), clipped to [low, high]."""
    return np.asarray(np.clip(x - beta * gradient + delta * noise, low, high), np.float32)


def step_size(schedule: str, first: float, last: float, t: int, num_rounds: int) -> float:
    """Return beta of round t = 0 .. num_rounds - 1, from ``first`` to ``last``.

    cosine: half a period between the two. ddpm: the noise variances of Nichol and
    Dhariwal's cosine schedule, stretched between the two: nearly constant until the
    last rounds, as the paper's program does.
    """
    check_choice("schedule", schedule, SCHEDULES)
    if num_rounds < 2:
        return first
    if schedule == "cosine":
        return last + (first - last) * (1 + math.cos(math.pi * t / (num_rounds - 1))) / 2
    variances = [_variance(s, num_rounds) for s in (0, t, num_rounds - 1)]
    return first + (last - first) * (variances[1] - variances[0]) / (variances[2] - variances[0])


def _variance(t: int, total: int) -> float:
    def kept(s: float) -> float:
        return math.cos((s / total + 0.008) / 1.008 * math.pi / 2) ** 2

    return min(1 - kept(t + 1) / kept(t), 0.999)
