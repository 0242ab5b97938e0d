"""Errors over the samples of all clients together, from the sums that clients report
(``algorithms.common.target_errors``).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.target_errors import CHANNELS, errors_of, pooled
from fedapps.clients.base.scores import ERROR_SUMS

#: Errors of single targets are reported up to this number of targets.
MAX_TARGETS = 10


def pooled_errors(metrics: Mapping[int | str, Mapping[str, Any]]) -> dict[str, float]:
    """Return ``rmse-pooled``, ``mae-pooled`` and ``r2-pooled``; {} unless clients
    report sums.

    With several targets, also the errors of each, as ``rmse-pooled-1``. Clients whose
    sums no samples could produce are skipped.
    """
    parts = [part for values in metrics.values() if (part := _sums(values)) is not None]
    if not parts:
        return {}
    targets = max(len(sums) for _, sums in parts)
    count, sums = pooled([part for part in parts if len(part[1]) == targets])
    out = {f"{name}-pooled": value for name, value in errors_of(count, sums).items()}
    for place in range(targets if 1 < targets <= MAX_TARGETS else 0):
        own = errors_of(count, sums[place : place + 1])
        out |= {f"{name}-pooled-{place + 1}": value for name, value in own.items()}
    return out


def _sums(values: Mapping[str, Any]) -> tuple[int, NDArray[np.float64]] | None:
    """Return a client's number of samples and its sums (targets, 4)."""
    listed, count = values.get(ERROR_SUMS), values.get("test-samples")
    if (
        not isinstance(listed, list)
        or not listed
        or len(listed) % CHANNELS
        or not isinstance(count, int | float)
        or count < 1
    ):
        return None
    sums = np.array(listed, np.float64).reshape(-1, CHANNELS)
    sound = np.isfinite(sums).all() and (sums[:, [0, 1, 3]] >= 0).all() and count < 2**53
    return (int(count), sums) if sound else None
