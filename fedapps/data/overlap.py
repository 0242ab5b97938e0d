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
    clients = [*trained]
    owner = np.repeat(np.arange(len(clients)), [len(rows) for rows in clients])
    held, place = np.unique(_digests(inputs, np.concatenate(clients)), return_inverse=True)
    holders = np.bincount(np.unique(np.stack([place, owner]), axis=1)[0])
    tested = _digests(inputs, np.unique(np.concatenate([*scored])))
    return int(np.isin(tested, held).sum()), int((holders[place] > 1).sum())


def _digests(inputs: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return a digest of each of these samples, equal if all their numbers are."""
    cells = (np.ascontiguousarray(inputs[row]).tobytes() for row in rows)
    return np.fromiter((blake2b(one, digest_size=16).digest() for one in cells), "S16", len(rows))
