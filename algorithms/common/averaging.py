"""Weighted average of lists of arrays: the server step of FedAvg and of everything built on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
#: How the names of arrays end that are counted or measured, not learned: a step along their differences means nothing.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def weighted_average(models: Sequence[Sequence[NDArray[Any]]], weights: Sequence[float]) -> Arrays:
    """Return ``sum_k w_k x_k / sum_k w_k`` for every array position (McMahan et al. 2017, Algorithm 1).

    ``models``: one list of arrays a client, position by position of the same shape; ``weights``: one non-negative
    number a client. Floating arrays keep their type; integer arrays (step counters of normalisation layers) are
    averaged and rounded back to their own type. Sums run in the order given: sort the clients first if the last bit matters.
    Raises ``ValueError`` when there is nothing to average or the weights do not sum to a positive finite number.
    """
    if not models or len(models) != len(weights):
        raise ValueError(
            f"weighted_average: {len(models)} models and {len(weights)} weights: need one weight a model, at least one"
        )
    total = float(np.sum(np.asarray(weights, dtype=np.float64)))
    if not np.isfinite(total) or total <= 0 or min(weights) < 0:
        raise ValueError(f"weighted_average: weights {list(weights)} must be non-negative with a positive finite sum")
    shares = [w / total for w in weights]
    return [_average(column, shares) for column in zip(*models, strict=True)]


def _average(column: Sequence[NDArray[Any]], shares: Sequence[float]) -> NDArray[Any]:
    dtype = column[0].dtype
    work = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
    mean = np.zeros(column[0].shape, work)
    scratch = np.empty_like(mean)
    for array, share in zip(column, shares, strict=True):
        np.multiply(array, share, out=scratch, dtype=work, casting="same_kind")
        mean += scratch  # in place also for arrays without dimensions, where `mean + scratch` would be a scalar
    if not np.issubdtype(dtype, np.floating):
        np.rint(mean, out=mean)
    return mean.astype(dtype, copy=False)
