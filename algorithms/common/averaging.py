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
#: Name suffixes of buffers that hold counts or running statistics: a step along their
#: differences means nothing.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
#: Those that are never negative: a net takes their root.
VARIANCES = "running_var"


def weighted_average(models: Sequence[Sequence[NDArray[Any]]], weights: Sequence[float]) -> Arrays:
    """Return ``sum_k w_k x_k / sum_k w_k`` for every array position.

    ``models``: one list of arrays per client, with equal shapes at each position;
    ``weights``: one non-negative number per client. Floating-point arrays keep their
    dtype; integer arrays (step counters of normalisation layers) are averaged and
    rounded back to their own dtype. Sums run in the order given: sort the clients first
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
    work = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
    mean = np.zeros(column[0].shape, work)
    scratch = np.empty_like(mean)
    for array, share in zip(column, shares, strict=True):
        np.multiply(array, share, out=scratch, dtype=work, casting="same_kind")
        mean += scratch  # in place, also for 0-d arrays, where `mean + scratch` would be a scalar
    if not np.issubdtype(dtype, np.floating):
        np.rint(mean, out=mean)
    return mean.astype(dtype, copy=False)
