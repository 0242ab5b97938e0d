"""Errors of predicted numbers: RMSE, MAE and R² of one client, and of all clients'
samples together, computed from sums.

A client sums up its n samples in four numbers per target:

    E = sum (f_i - y_i)^2,
        A = sum |f_i - y_i|,    m = mean y_i,    S = sum (y_i - m)^2,

E and A of several clients are added. With N = sum n_k and M = sum n_k m_k / N,

    S  =  sum over all samples of (y_i - M)^2  =  sum_k [S_k + n_k (m_k - M)^2].

RMSE = sqrt(E / N), MAE = A / N and R² = 1 - E / S then equal those of the pooled
samples up to rounding. They differ from means over clients: the root of a mean of
squares is not a mean of roots, and R² compares with the mean M of all samples, while a
client's own R² compares with m_k. With several targets, E and A are summed over all
targets (each in its own units), and R² is the mean over the targets.

Source of the last identity: Chan, Golub, LeVeque, "Algorithms for Computing the Sample
Variance: Analysis and Recommendations", The American Statistician 37(3), 1983, equation
(2.1).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Numbers per target: E, A, m, S.
CHANNELS = 4


def error_sums(predicted: Floats, targets: Floats) -> Floats:
    """Return E, A, m and S (targets, 4) of predictions and targets, both (n, targets),
    n > 0.
    """
    if predicted.shape != targets.shape or targets.ndim != 2 or not len(targets):
        raise ValueError(
            f"predictions {predicted.shape} and targets {targets.shape}: must be (n, targets), n > "
            "0, and alike"
        )
    errors = predicted - targets
    # to the bit the value of a constant, whose S is 0
    centre = targets[0] + (targets - targets[0]).mean(0)
    return np.stack(
        [
            np.square(errors).sum(0),
            np.abs(errors).sum(0),
            centre,
            np.square(targets - centre).sum(0),
        ],
        1,
    )


def pooled(parts: Sequence[tuple[int, Floats]]) -> tuple[int, Floats]:
    """Return the number and the sums (targets, 4) of the samples of several clients
    together, given those of each.
    """
    counts, sums = (
        np.array([n for n, _ in parts], np.float64),
        np.stack([part for _, part in parts]),
    )
    first = sums[0, :, 2]
    centre = first + (counts[:, None] / counts.sum() * (sums[:, :, 2] - first)).sum(0)
    spread = sums[:, :, 3].sum(0) + (counts[:, None] * np.square(sums[:, :, 2] - centre)).sum(0)
    return int(counts.sum()), np.stack(
        [sums[:, :, 0].sum(0), sums[:, :, 1].sum(0), centre, spread], 1
    )


def errors_of(count: int, sums: Floats) -> dict[str, float]:
    """Return ``rmse``, ``mae`` and, unless a target is constant, ``r2``, given the
    number of samples and their sums (targets, 4).
    """
    squared, absolute, _, spread = sums.T
    samples = count * len(sums)
    out = {"rmse": math.sqrt(squared.sum() / samples), "mae": float(absolute.sum() / samples)}
    return out | {"r2": float((1 - squared / spread).mean())} if (spread > 0).all() else out
