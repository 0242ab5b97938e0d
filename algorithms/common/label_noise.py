"""Wrong labels on purpose: pair and symmetric flipping.

Source: Han et al. 2018, "Co-teaching", section 4, as in the dissertation's Chapter II (Table 2.6). With ratio e and L classes, a label
c becomes

    pair:       c + 1 mod L with probability e
    symmetric:  each of the other classes with probability e / (L - 1)
"""

import numpy as np
from numpy.typing import NDArray

from algorithms.common.checks import check_choice, check_range

KINDS = ("pair", "symmetric")


def flipped(labels: NDArray[np.int64], num_classes: int, kind: str, ratio: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return ``labels`` (n,) in 0..num_classes - 1 with some of them flipped, each by itself, with probability ``ratio`` in [0, 1).

    The same generator gives the same draws whatever the ratio: a label that is wrong at one ratio is wrong at every larger one.
    """
    check_choice("noise", kind, KINDS)
    check_range("noise-ratio", ratio, 0, 1, open_high=True)
    if num_classes < 2:
        raise ValueError(f"num_classes = {num_classes}: a label can only be wrong where there are two classes")
    hit = rng.random(len(labels)) < ratio
    away = np.ones(len(labels), np.int64) if kind == "pair" else rng.integers(1, num_classes, len(labels))
    return np.where(hit, (labels + away) % num_classes, labels)
