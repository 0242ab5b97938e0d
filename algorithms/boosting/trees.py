"""Regression trees as arrays of fixed shape, and an oracle that boosts a few of them:
weak learners for tabular data.

A tree of depth d is laid out as a full binary tree: ``feature`` and ``threshold`` (2^d
- 1,) of the inner nodes, node i with children 2 i + 1 (x[feature] <= threshold) and 2 i
+ 2, and ``value`` (2^d, outputs) of the leaves. Below a node that was not split, all
leaves are equal. The trees are CART's: the split that leaves the least squared error,
over all features and all values half-way between two neighbours. Fitted here in NumPy,
so that a small device needs neither a tree library (four seconds to import) nor
PyTorch.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.boosting.functional import Values, module_of, on_cpu
from fedapps.algorithms.boosting.oracle import Learner, Target, in_chunks

Tree = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float64]]
NAMES = ("feature", "threshold", "value")
# Values of a feature that are as close as this count as equal.
EQUAL = 1e-7


def fit_tree(x: NDArray[np.float32], y: NDArray[np.float64], depth: int, min_leaf: int = 1) -> Tree:
    """Return the regression tree of this depth for x (n, features) and y (n, outputs).
    Ties: the first feature, its least value.

    Leaves have at least ``min_leaf`` rows if there are enough rows.
    """
    inner = 2**depth - 1
    features, thresholds = np.zeros(inner, np.int32), np.zeros(inner, np.float32)
    values = np.zeros((inner + 1, y.shape[1]))
    places = [(0, np.arange(len(x)))]
    while places:
        place, rows = places.pop()
        if place >= inner:
            values[place - inner] = y[rows].mean(0)
            continue
        split = _best_split(x[rows], y[rows], min_leaf)
        if split is None:  # both halves get all rows, so that all leaves below are equal
            places += [(2 * place + 1, rows), (2 * place + 2, rows)]
            continue
        features[place], thresholds[place] = split
        right = x[rows, split[0]] > split[1]
        places += [(2 * place + 1, rows[~right]), (2 * place + 2, rows[right])]
    return features, thresholds, values


def _best_split(
    x: NDArray[np.float32], y: NDArray[np.float64], min_leaf: int
) -> tuple[int, np.float32] | None:
    """Return feature and threshold of the split with the least squared error, or None
    if no split has ``min_leaf`` rows on each side.

    With the outputs centred, the error falls by ``|S_l|^2 / n_l + |S_r|^2 / n_r``, S
    being the sums on both sides, S_r = -S_l.
    """
    y = y - y.mean(0)
    if len(x) < 2 * min_leaf or not (np.square(y).sum() > len(x) * np.finfo(np.float64).eps):
        return None
    order = np.argsort(x, axis=0, kind="stable")
    ordered = np.take_along_axis(x, order, axis=0)
    left = np.arange(1, len(x))[:, None]
    gain = np.square(np.cumsum(y[order], axis=0)[:-1]).sum(2) * (1 / left + 1 / (len(x) - left))
    gain[ordered[1:] <= ordered[:-1] + EQUAL] = -1.0
    gain[: min_leaf - 1] = gain[len(gain) - min_leaf + 1 :] = -1.0
    best = gain.max(0)
    feature = int(best.argmax())
    if best[feature] < 0:
        return None
    at = int(gain[:, feature].argmax())
    low, high = (float(ordered[i, feature]) for i in (at, at + 1))
    return feature, _float32_below(low / 2 + high / 2)


def _float32_below(threshold: float) -> np.float32:
    """Return the threshold rounded down: that leaves every decision on float32 inputs
    as it was.
    """
    near = np.float32(threshold)
    return near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))


class TreeOracle:
    """L2 oracle: boosts ``trees`` trees, each fitted to the residual of the ones before
    it and scaled by ``rate``.

    ``min_leaf``: the least rows of a leaf.
    """

    def __init__(
        self, trees: int = 1, depth: int = 3, rate: float = 1.0, min_leaf: int = 1
    ) -> None:
        self.trees, self.depth, self.rate, self.min_leaf = trees, depth, rate, min_leaf

    def fit(self, x: Values, target: Target, rng: np.random.Generator) -> Learner:
        """Return the arrays ``feature``, ``threshold`` (trees, 2^d - 1) and ``value``
        (trees, 2^d, outputs).
        """
        points, rest = (np.asarray(on_cpu(part)) for part in (x.reshape(len(x), -1), target.values))
        trees = []
        rest = rest.astype(np.float64)
        for _ in range(self.trees):
            feature, threshold, value = fit_tree(points, rest, self.depth, self.min_leaf)
            trees.append((feature, threshold, (self.rate * value).astype(np.float32)))
            rest = rest - walk(feature[None], threshold[None], trees[-1][2][None], points)[0]
        features, thresholds, values = (np.stack(column) for column in zip(*trees, strict=True))
        return {"feature": features, "threshold": thresholds, "value": values}

    def predict(self, learners: Mapping[str, Values], x: Values) -> Values:
        """Return the values (m, n, outputs) of m learners, each the sum of its
        trees.
        """

        def some(group: Mapping[str, Values], points: Values) -> Values:
            m, trees = group["feature"].shape[:2]
            feature, threshold, value = (
                group[name].reshape(m * trees, *group[name].shape[2:]) for name in NAMES
            )
            values = walk(feature, threshold, value, points)
            return values.reshape(m, trees, *values.shape[1:]).sum(axis=1)

        trees, _, outputs = learners["value"].shape[1:]
        return in_chunks(some, learners, x.reshape(len(x), -1), trees * (8 + outputs))


def walk(feature: Values, threshold: Values, value: Values, x: Values) -> Values:
    """Return the values (m, n, outputs) of m trees at x (n, features), descending one
    level at a time for all trees and points.
    """
    xp = module_of(x)
    trees, inner = feature.shape
    rows, tree = xp.arange(len(x), device=x.device), xp.arange(trees, device=x.device)[:, None]
    at = xp.zeros((trees, len(x)), dtype=xp.int64, device=x.device)
    for _ in range((inner + 1).bit_length() - 1):
        seen = x[rows, feature[tree, at]]
        at = 2 * at + 1 + (seen > threshold[tree, at])
    return value[tree, at - inner]
