"""Trees grown from sums: gradients and curvatures by leaf, feature and bin, in whole
numbers.

Let g, h be the derivatives of a row's loss by its value, G, H their sums over the rows
of a leaf, and n the number of rows. A split into two leaves lowers the loss by about

    (1/2) (G_l^2 / (H_l + lambda) + G_r^2 / (H_r + lambda) - G^2 / (H + lambda)),

and the value of a leaf is -G / (H + lambda). So growing a tree only needs G, H and n by
leaf, feature and bin. Every row's g and h are rounded to multiples of 2^-16, so that
sums are whole numbers. The sums, and so the trees, are the same to the last bit for any
order and grouping of the rows.

Sources: Chen, Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016, arXiv
1603.02754, equations (5) to (7) and, for missing values, algorithm 3; Ke, Meng, Finley,
Wang, Chen, Ma, Ye, Liu, "LightGBM: A Highly Efficient Gradient Boosting Decision Tree",
NeurIPS 2017, algorithm 1 (histograms); Shi, Ke, Chen, Zheng, Liu, "Quantized Training
of Gradient Boosting Decision Trees", NeurIPS 2022, arXiv 2207.09682 (far coarser
gradients do).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.boosting.bins import LARGEST, Edges, starts, widths

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: A derivative of 1 as a whole number.
UNIT = 2**16
#: The loss of predicted numbers, half the squared error of a standardised target.
NUMBER = "number"
#: Largest |g| and h of a row, by loss: cross-entropy of a logit, square of a value
#: whose target is -1 or 1 (gradients are cut), half the square of a standardised error
#: (cut at eight deviations: beyond, a row draws as one whose loss is absolute).
BOUNDS = {"cross-entropy": (1.0, 0.25), "square": (2.0, 1.0), NUMBER: (8.0, 1.0)}
#: Splits that gain less are rounding.
LEAST_GAIN = 1e-12
CHANNELS = 3


@dataclass(frozen=True)
class Growth:
    """How trees grow. ``min_leaf``: least rows of a leaf; ``l2``: lambda; ``rate``:
    shrinkage; ``max_step``: of a leaf, before it.
    """

    min_leaf: int = 20
    l2: float = 1.0
    rate: float = 0.3
    max_step: float = 4.0

    def value(self, g: Floats, h: Floats) -> Floats:
        """Return the values of leaves."""
        step = -g / np.maximum(h + self.l2, 1e-12)
        return np.asarray(self.rate * np.clip(step, -self.max_step, self.max_step))


@dataclass(frozen=True)
class Splits:
    """Splits of m leaves: ``feature`` (m,), -1 for none; ``threshold`` (m,): values up
    to it go left; ``left`` (m,): missing ones do.

    ``children`` (m, 2): the values of the two leaves, or twice that of a leaf that is
    not split.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.uint8]
    children: Floats


def derivatives(loss: str, values: Floats, y: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return g and h (n,) in units of 1 / UNIT, at values (n,) of rows with labels 0 or
    1, or with standardised targets.
    """
    if loss == NUMBER:
        g, h = values - y, np.ones(len(y))
    elif loss == "square":
        g, h = values - (2.0 * y - 1.0), np.ones(len(y))
    else:
        likely = 0.5 + 0.5 * np.tanh(0.5 * values)
        g, h = likely - y, likely * (1.0 - likely)
    bound = BOUNDS[loss][0]
    return np.rint(UNIT * np.clip(g, -bound, bound)).astype(np.int64), np.rint(UNIT * h).astype(
        np.int64
    )


def class_derivatives(values: Floats, y: Ints, place: int) -> tuple[Ints, Ints]:
    """Return g and h (n,) in units of 1 / UNIT of the cross-entropy by the value of
    class ``place``, at values (n, classes) of rows with labels (n,).
    """
    powers = np.exp(values - values.max(1, keepdims=True))
    likely = powers[:, place] / powers.sum(1)
    return (
        np.rint(UNIT * (likely - (y == place))).astype(np.int64),
        np.rint(UNIT * likely * (1.0 - likely)).astype(np.int64),
    )


def total_of(loss: str, y: NDArray[Any]) -> int:
    """Return the sum that the start value needs: the number of rows with label 1, or
    the sum of the rows' targets in units of 1 / UNIT.
    """
    if loss != NUMBER:
        return int(y.sum())
    bound = BOUNDS[NUMBER][0]
    return int(np.rint(UNIT * np.clip(y, -bound, bound)).astype(np.int64).sum())


def total_fault(loss: str, rows: int, total: int) -> str:
    """Return why ``total`` cannot be the total of ``rows`` rows, or ""."""
    if loss == NUMBER:
        bound = BOUNDS[NUMBER][0]
        return (
            ""
            if rows >= 0 and abs(total) <= rows * bound * UNIT
            else f"targets of more than {bound:g} deviations a row"
        )
    return "" if 0 <= total <= rows else f"{total} rows of label 1 among {rows}, or counts below 0"


def start_value(loss: str, rows: int, ones: int) -> float:
    """Return the best constant for ``rows`` rows, ``ones`` of them with label 1; it is
    bounded where all labels are equal.

    In regression ``ones`` is the total of the targets, and the best constant the mean.
    """
    if loss == NUMBER:
        return ones / UNIT / rows
    share = (ones + 0.5) / (rows + 1.0)
    return 2.0 * share - 1.0 if loss == "square" else float(np.log(share / (1.0 - share)))


def leaf_sums(
    cells: Ints, edges: Sequence[Edges], leaf: Ints, leaves: int, g: Ints, h: Ints
) -> Ints:
    """Return G, H and n by leaf and cell (leaves, 3, cells of all features); rows whose
    ``leaf`` (n,) is -1 are in none.

    ``cells`` (n, F): those of :func:`~fedapps.algorithms.boosting.bins.cells_of`.
    """
    kept = leaf >= 0
    size = int(widths(edges).sum())
    places = (cells[kept] + starts(edges) + (leaf[kept] * size)[:, None]).ravel()
    features = cells.shape[1]
    out = np.zeros((CHANNELS, leaves * size), np.int64)
    for channel, values in enumerate((g, h)):  # a sum of whole numbers below 2^53 is exact
        out[channel] = np.bincount(places, np.repeat(values[kept], features), leaves * size).astype(
            np.int64
        )
    out[2] = np.bincount(places, minlength=leaves * size)
    return out.reshape(CHANNELS, leaves, size).transpose(1, 0, 2)


def sums_fault(sums: Ints, edges: Sequence[Edges], loss: str) -> str:
    """Return why these cannot be the sums (leaves, 3, cells) of any rows, or ""."""
    g, h, n = sums[:, 0], sums[:, 1], sums[:, 2]
    most_g, most_h = BOUNDS[loss]
    if (n < 0).any():
        return "a bin holds fewer than no rows"
    if (np.abs(g) > n * (most_g * UNIT)).any():
        return f"gradients of more than {most_g:g} a row"
    if (h < 0).any() or (h > n * (most_h * UNIT)).any():
        return f"curvatures outside of 0 to {most_h:g} a row"
    if (np.ptp(np.add.reduceat(sums, starts(edges), axis=2), axis=2) != 0).any():
        return "the bins of one feature sum to other totals than those of another"
    return ""


def best_splits(sums: Ints, edges: Sequence[Edges], growth: Growth) -> Splits:
    """Return the best split of every leaf, given its sums (m, 3, cells). Ties: the
    first feature, its least value.
    """
    first, sizes, rows = starts(edges), widths(edges), np.arange(len(sums))
    feature = np.repeat(np.arange(len(edges)), sizes)
    place = np.arange(len(feature)) - first[feature]
    # (m, 3, cells): below and at a cell, within its feature; of its feature
    below = sums.cumsum(2)
    below -= (below - sums)[:, :, first][:, :, feature]
    last = (first + sizes - 1)[feature]
    total, missing = below[:, :, last], sums[:, :, last]
    # Missing values go right, then left. The last cell but that of missing values parts
    # these from all others: one of the first kind only.
    left = np.concatenate([below, below + missing], 2)
    sides = [_in_units(side) for side in (left, np.concatenate([total, total], 2) - left)]
    allowed = np.concatenate([place < sizes[feature] - 1, place < sizes[feature] - 2])
    gain = np.where(allowed, _gain(sides[0], sides[1], growth), -np.inf)
    order = np.argsort(np.tile(feature, 2), kind="stable")  # ties go by feature, then by kind
    chosen = order[gain[:, order].argmax(1)]
    at, kind = chosen % len(feature), chosen >= len(feature)
    best = [side[rows, :, chosen] for side in sides]
    split = gain[rows, chosen] > LEAST_GAIN
    own = _in_units(total[:, :, :1])[:, :, 0]
    values = [growth.value(*np.where(split[:, None], side, own).T[:2]) for side in best]
    # without missing values here, those that come later go with most rows
    most = np.where(missing[rows, 2, at] > 0, kind, best[0][:, 2] > best[1][:, 2])
    ends = np.concatenate([np.append(own_edges, [LARGEST, LARGEST]) for own_edges in edges])
    return Splits(
        np.where(split, feature[at], -1).astype(np.int32),
        np.where(split, ends[at], 0).astype(np.float32),
        np.where(split, most, 1).astype(np.uint8),
        np.stack(values, 1),
    )


def _in_units(sums: Ints) -> Floats:
    """Return sums (m, 3, n) of g, h and rows as numbers."""
    return np.asarray(sums / np.array([UNIT, UNIT, 1.0])[:, None])


def _gain(left: Floats, right: Floats, growth: Growth) -> Floats:
    """Return the gain (m, splits) of the sums (m, 3, splits) on both sides, -inf where
    a side is too small.
    """

    def score(side: Floats) -> Floats:
        g, h = side[:, 0], np.maximum(side[:, 1], 0.0) + growth.l2
        return np.asarray(np.where(h > 0, g * g / np.maximum(h, 1e-12), 0.0))

    gain = 0.5 * (score(left) + score(right) - score(left + right))
    return np.where(np.minimum(left[:, 2], right[:, 2]) >= growth.min_leaf, gain, -np.inf)
