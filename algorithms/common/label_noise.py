"""Synthetic label noise: pair and symmetric flipping.

With ratio e and L classes, a label c becomes

    pair:       c + 1 mod L with probability e
    symmetric:  each of the other classes with probability e / (L - 1)

Sources: Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama, "Co-teaching: Robust Training of
Deep Neural Networks with Extremely Noisy Labels", NeurIPS 2018, arXiv 1804.06872,
section 4; as used in Hahn, "Algorithms for Collaborative Machine Learning under
Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II
(Table 2.6).
"""

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_choice, check_range

KINDS = ("pair", "symmetric")


def flipped(
    labels: NDArray[np.int64], num_classes: int, kind: str, ratio: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return a copy of ``labels`` (n,) in 0..num_classes - 1 with each flipped
    independently with probability ``ratio`` in [0, 1).

    The draws do not depend on the ratio: with the same generator, a label flipped at
    one ratio is flipped at every larger one.
    """
    check_choice("noise", kind, KINDS)
    check_range("noise-ratio", ratio, 0, 1, open_high=True)
    if num_classes < 2:
        raise ValueError(
            f"num_classes = {num_classes}: a label can only be wrong where there are two classes"
        )
    hit = rng.random(len(labels)) < ratio
    away = (
        np.ones(len(labels), np.int64)
        if kind == "pair"
        else rng.integers(1, num_classes, len(labels))
    )
    return np.where(hit, (labels + away) % num_classes, labels)
