"""Weighted average of lists of arrays: the server step of FedAvg and of the methods
built on it.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629,
Algorithm 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
#: Larger numbers are invalid for every method, unless a model holds them from the
#: start, as a mask may. No weight, gradient, loss or sample count is that large, and a
#: sum of a few thousand of their squares fits into a float64.
LIMIT = 1e15
#: Name suffixes of buffers that hold counts or running statistics: a step along their
#: differences means nothing.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
#: Those that are never negative: a net takes their root.
VARIANCES = "running_var"


def weighted_average(models: Sequence[Sequence[NDArray[Any]]], weights: Sequence[float]) -> Arrays:
    """Return ``sum_k w_k x_k / sum_k w_k`` for every array position.

    ``models``: one list of arrays per client, with equal shapes at each position;
    ``weights``: one non-negative number per client. Real and complex arrays keep their
    dtype; integer arrays (step counters of normalisation layers) are averaged and
    rounded back to their own dtype. Numbers beyond ``LIMIT`` that all models share are
    kept, not computed. Sums run in the order given: sort the clients first
    if the last bit matters. Raises ``ValueError`` if there is nothing to average or the
    weights do not sum to a positive finite number.
    """
    if not models or len(models) != len(weights):
        raise ValueError(
            f"weighted_average: {len(models)} models and {len(weights)} weights: need one "
            "weight per model, at least one"
        )
    total = float(np.sum(np.asarray(weights, dtype=np.float64)))
    if not np.isfinite(total) or total <= 0 or min(weights) < 0:
        raise ValueError(
            f"weighted_average: weights {list(weights)} must be non-negative with a positive "
            "finite sum"
        )
    shares = [w / total for w in weights]
    return [_average(column, shares) for column in zip(*models, strict=True)]


def _average(column: Sequence[NDArray[Any]], shares: Sequence[float]) -> NDArray[Any]:
    dtype = column[0].dtype
    work = dtype if dtype.kind == "c" or dtype in (np.float32, np.float64) else np.dtype(np.float64)
    mean = np.zeros(column[0].shape, work)
    scratch = np.empty_like(mean)
    with np.errstate(over="ignore", invalid="ignore"):
        for array, share in zip(column, shares, strict=True):
            np.multiply(array, share, out=scratch, dtype=work, casting="same_kind")
            mean += scratch  # in place, also for 0-d arrays: `mean + scratch` would be a scalar
        if dtype.kind not in "fc":
            np.rint(mean, out=mean)
        averaged = mean.astype(dtype, copy=False)
    if (large := ~(np.abs(mean) <= LIMIT)).any():
        for array in column[1:]:
            large &= array == column[0]
        np.copyto(averaged, column[0], where=large)
    return averaged


def difference(values: NDArray[Any], start: NDArray[Any] | float) -> NDArray[Any]:
    """Return ``values - start`` in double precision, 0 where both are the same infinity
    or NaN.
    """
    wide = np.complex128 if values.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        out = np.asarray(np.subtract(values, start, dtype=wide))
    if not np.isfinite(out).all():
        out[same(values, start)] = 0
    return out


def same(values: NDArray[Any], start: NDArray[Any] | float) -> NDArray[np.bool_]:
    """Return where values are those of ``start``; NaN equals NaN."""
    return np.asarray((values == start) | ((values != values) & np.not_equal(start, start)))
