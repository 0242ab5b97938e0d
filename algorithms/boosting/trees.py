"""Regression trees as arrays of fixed shape, and an oracle that boosts a few of them: weak learners for tabular data.

A tree of depth d is laid out as a full binary tree: ``feature`` and ``threshold`` (2^d - 1,) of the inner nodes, node i with children
2 i + 1 (x[feature] <= threshold) and 2 i + 2, and ``value`` (2^d, outputs) of the leaves. Below a node that was not split, all leaves
are equal. Trees are fitted elsewhere and passed in this layout (``fedapps.tasks.boosting_oracles``), so this module depends on no
tree library.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algorithms.boosting.weak_learners import Learner, Target, in_chunks

Tree = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float64]]
#: (x (n, features) float32, targets (n, outputs), depth, generator) -> feature, threshold, value
FitTree = Callable[[NDArray[np.float32], NDArray[np.float64], int, np.random.Generator], Tree]


def full_tree(
    left: NDArray[Any], right: NDArray[Any], feature: NDArray[Any], threshold: NDArray[Any], value: NDArray[Any], depth: int
) -> Tree:
    """Convert a tree given by the children of its nodes (-1: leaf) to the layout of this module.

    Thresholds are rounded down to float32, which leaves every decision on float32 inputs unchanged.
    """
    inner = 2**depth - 1
    features, thresholds = np.zeros(inner, np.int32), np.zeros(inner, np.float32)
    values = np.zeros((inner + 1, value.shape[1]))
    places = [(0, 0)]  # (node, place in the full tree)
    while places:
        node, place = places.pop()
        if place >= inner:
            values[place - inner] = value[node]
        elif left[node] < 0:
            places += [(node, 2 * place + 1), (node, 2 * place + 2)]
        else:
            features[place], thresholds[place] = feature[node], _float32_below(float(threshold[node]))
            places += [(int(left[node]), 2 * place + 1), (int(right[node]), 2 * place + 2)]
    return features, thresholds, values


def _float32_below(threshold: float) -> np.float32:
    near = np.float32(threshold)
    return near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))


class TreeOracle:
    """L2 oracle: boosts ``trees`` trees, each fitted to the residual of the ones before it and scaled by ``rate``."""

    def __init__(self, fit_tree: FitTree, trees: int = 1, depth: int = 3, rate: float = 1.0) -> None:
        self.fit_tree, self.trees, self.depth, self.rate = fit_tree, trees, depth, rate

    def fit(self, x: Tensor, target: Target, rng: np.random.Generator) -> Learner:
        """Return the arrays ``feature``, ``threshold`` (trees, 2^d - 1) and ``value`` (trees, 2^d, outputs)."""
        points, rest = x.flatten(1).cpu().numpy(), target.values.cpu().double().numpy()
        found = []
        for _ in range(self.trees):
            feature, threshold, value = self.fit_tree(points, rest, self.depth, rng)
            found.append((feature, threshold, (self.rate * value).astype(np.float32)))
            feature_, threshold_, value_ = (torch.from_numpy(array)[None] for array in found[-1])
            rest = rest - walk(feature_, threshold_, value_, x.flatten(1).cpu())[0].double().numpy()
        features, thresholds, values = (np.stack(column) for column in zip(*found, strict=True))
        return {"feature": features, "threshold": thresholds, "value": values}

    def predict(self, learners: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the values (m, n, outputs) of m learners, each the sum of its trees."""

        def some(group: Mapping[str, Tensor], points: Tensor) -> Tensor:
            trees = [group[name].flatten(0, 1) for name in ("feature", "threshold", "value")]
            values: Tensor = walk(trees[0], trees[1], trees[2], points)
            return values.unflatten(0, tuple(group["feature"].shape[:2])).sum(1)  # type: ignore[no-any-return]

        trees, _, outputs = learners["value"].shape[1:]
        return in_chunks(some, learners, x.flatten(1), trees * (8 + outputs))


def walk(feature: Tensor, threshold: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """Return the values (m, n, outputs) of m trees at x (n, features), descending one level at a time for all trees and points."""
    trees, inner = feature.shape
    rows = torch.arange(len(x), device=x.device)
    at = torch.zeros((trees, len(x)), dtype=torch.int64, device=x.device)
    for _ in range((inner + 1).bit_length() - 1):
        seen = x[rows, feature.gather(1, at).long()]
        at = 2 * at + 1 + (seen > threshold.gather(1, at)).long()
    leaves = (at - inner)[:, :, None].expand(-1, -1, value.shape[2])
    return value.gather(1, leaves)
