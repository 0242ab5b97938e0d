"""What clients have in common: their classes, and samples that are there more than
once.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: If there are more clients, this many, evenly spaced, are compared in pairs.
MOST = 300


def common_share(counts: NDArray[np.int64]) -> tuple[float, float, float]:
    """Return mean, least and most of what two clients' class mixtures have in common,
    in [0, 1], over all pairs.

    ``counts`` (K, C), K > 1, none of them empty: samples by client and class. Two
    mixtures p and q have sum_c min(p_c, q_c) in common: 1 minus their distance in total
    variation.
    """
    rows = counts[np.linspace(0, len(counts) - 1, min(len(counts), MOST)).round().astype(int)]
    mixtures = rows / rows.sum(1, keepdims=True)
    pairs = np.concatenate(
        [np.minimum(p, mixtures[k + 1 :]).sum(1) for k, p in enumerate(mixtures[:-1])]
    )
    return float(pairs.mean()), float(pairs.min()), float(pairs.max())


def copies(
    inputs: NDArray[Any], trained: Iterable[NDArray[np.int64]], scored: Iterable[NDArray[np.int64]]
) -> tuple[int, int]:
    """Return how many samples to be scored on equal one that somebody trains on, and
    how many to train on equal another client's.

    ``inputs`` (N, ...); ``trained``, ``scored``: the rows of each client. Samples are
    equal if all their numbers are.
    """
    holders: dict[bytes, set[int]] = {}
    own = [[_digest(inputs[row]) for row in rows] for rows in trained]
    for client, digests in enumerate(own):
        for digest in digests:
            holders.setdefault(digest, set()).add(client)
    tested = {int(row) for rows in scored for row in rows}
    twice = sum(len(holders[digest]) > 1 for digests in own for digest in digests)
    return sum(_digest(inputs[row]) in holders for row in tested), twice


def _digest(sample: NDArray[Any]) -> bytes:
    return blake2b(np.ascontiguousarray(sample).tobytes(), digest_size=16).digest()
