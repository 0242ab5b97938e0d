"""The state of histogram boosting as named arrays: a sum of trees, grown level by
level, and the bins of its features.

``stage`` is the next step: 0 and 1 need counts of values in cells; 2 + d needs the sums
of the leaves on level d of the tree that is being grown. Trees have the layout of
``algorithms.boosting.trees``, with ``feature`` -1 where a node is not split: all rows
there go left.

Trees grow from sums: gradients and curvatures by leaf, feature and bin, in whole
numbers. Let g, h be the derivatives of a row's loss by its value, G, H their sums over
the rows of a leaf, and n the number of rows. A split into two leaves lowers the loss by
about

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

A leaf can also be split by who holds a row, its site: :func:`split_by_site`. Feature F,
after the F columns, stands for the site. It is handled as a column whose value is
missing: rows go left as ``left`` says, which differs between sites (``Forest.sides``).
Source: Khellaf, Scornet, Bellet, Josse, "Principled Federated Random Forests for
Heterogeneous Data", 2026, arXiv 2602.03258 (splits on client indicators, in forests).

Neighbouring values form groups, so that no sum is over fewer rows than allowed. Each
feature is treated alone: its values, in order and with missing ones last, form
groups of at least ``least`` rows, and every value becomes the median of its group.
Equal values stay together.

Source: univariate microaggregation: Domingo-Ferrer, Mateo-Sanz, "Practical
Data-Oriented Microaggregation for Statistical Disclosure Control", IEEE Transactions on
Knowledge and Data Engineering 14(1), 2002. Here groups are formed from the smallest
value upwards, and the median stands for a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.boosting.bins import (
    LARGEST,
    Edges,
    cells_of,
    counted,
    cuts,
    first_edges,
    refine,
    starts,
    widths,
)


def merged(column: NDArray[Any], sides: NDArray[np.int64], least: int) -> NDArray[Any]:
    """Return ``column`` (n,) with the values of each group replaced by its median.

    On each of two ``sides`` (n,), 0 or 1, a group has no row or at least ``least``. The
    column as a whole must have that, too.
    """
    values, at = np.unique(column, return_inverse=True)
    by_side = [np.bincount(at[sides == side], minlength=len(values)) for side in (0, 1)]
    upto = np.concatenate([[[0, 0]], np.stack(by_side, 1).cumsum(0)])
    first = np.array(_first_of_groups(upto.tolist(), least), np.int64)
    rows = upto.sum(1)
    below, above = rows[first], rows[np.append(first[1:], len(values))]
    medians = values[np.searchsorted(rows[1:], below + (above - below + 1) // 2)]
    return np.asarray(medians[np.searchsorted(first, at, side="right") - 1])


def _first_of_groups(upto: list[list[int]], least: int) -> list[int]:
    """Return the place of the first value of each group. ``upto[i]``: rows of the first
    i values, on both sides. Values that remain join the last groups.
    """

    def enough(start: int, end: int) -> bool:
        return not any(
            0 < above - below < least for below, above in zip(upto[start], upto[end], strict=True)
        )

    out: list[int] = []
    start, last = 0, len(upto) - 1
    for end in range(1, last + 1):
        if enough(start, end):
            out.append(start)
            start = end
    while start < last:
        if not out:
            raise ValueError(f"{upto[-1]} rows: a group needs {least}")
        start = out.pop()
        if enough(start, last):
            out.append(start)
            start = last
    return out


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
    not split. ``gain`` (m,): by which a split lowers the loss, -inf if none is allowed.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.uint8]
    children: Floats
    gain: Floats


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
        gain[rows, chosen],
    )


def split_by_site(
    splits: Splits, sums: Ints, feature: int, growth: Growth
) -> tuple[Splits, NDArray[np.uint8]]:
    """Return the splits of m leaves, by the site where that gains more than the given
    ``splits``, as ``feature``; and the sites whose rows go left by it (m, K).

    ``sums`` (m, K, 3): G, H and n of each leaf and site. The sites that go left are the
    first ones in the order of G / H. No other subset gains more: a score G^2 / (H +
    lambda) is convex in (G, H), so the best subset is a vertex of the convex hull of
    all subsets' sums, and these are the sites on one side of a line a G + b H = 0 with
    H >= 0 (without lambda: Fisher, "On Grouping for Maximum Homogeneity", Journal of
    the American Statistical Association 53, 1958). Where ``min_leaf`` forbids the best
    subset, a subset that is no part of the order may gain more than the best allowed
    part. Sites without rows here, and later ones, go with most rows.
    """
    g, h, n = np.moveaxis(sums, 2, 0)
    ratio = np.where(h > 0, g / np.maximum(h, 1), np.sign(g) * float(LARGEST))
    order = np.argsort(ratio, axis=1, kind="stable")
    left = np.take_along_axis(sums, order[:, :, None], 1).cumsum(1).transpose(0, 2, 1)
    sides = [_in_units(side) for side in (left, left[:, :, -1:] - left)]
    gain, rows = _gain(sides[0], sides[1], growth), np.arange(len(sums))
    cut = gain.argmax(1)
    best = [side[rows, :, cut] for side in sides]
    split = gain[rows, cut] > np.maximum(splits.gain, LEAST_GAIN)
    most = best[0][:, 2] > best[1][:, 2]
    first = order.argsort(1) <= cut[:, None]
    children = np.stack([growth.value(side[:, 0], side[:, 1]) for side in best], 1)
    goes = np.where(n > 0, first, most[:, None])
    found = Splits(
        np.where(split, feature, splits.feature).astype(np.int32),
        np.where(split, 0, splits.threshold).astype(np.float32),
        np.where(split, most, splits.left).astype(np.uint8),
        np.where(split[:, None], children, splits.children),
        np.where(split, gain[rows, cut], splits.gain),
    )
    return found, np.where(split[:, None], goes, splits.left[:, None]).astype(np.uint8)


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


NAMES = ("stage", "base", "edges", "sizes", "feature", "threshold", "left", "value")
COARSE, FINE, GROW = 0, 1, 2
#: Cells of a feature in which values are counted to find the bins, at least.
CELLS = 512


@dataclass
class Forest:
    """The function ``base + sum of trees``. ``edges``: of the cells, later of the bins,
    of each feature. ``base`` (outputs,): of K > 2 classes there are K outputs, and tree
    t adds to output t modulo K.

    ``feature``, ``threshold``, ``left`` (T, 2^depth - 1) and ``value`` (T, 2^depth):
    the trees; the last one is unfinished above stage 2. ``sides``: ``left`` of the
    sites that splits know, by name; it differs from that of others at splits by site.
    """

    depth: int
    edges: list[Edges]
    stage: int = COARSE
    base: Floats = field(default_factory=lambda: np.zeros(1))
    feature: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    threshold: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    left: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    value: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    sides: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    @classmethod
    def new(cls, features: int, depth: int, outputs: int = 1) -> "Forest":
        """Return the forest without bins or trees."""
        nodes = np.zeros((0, 2**depth - 1))
        return cls(
            depth,
            [first_edges()] * features,
            base=np.zeros(outputs),
            feature=nodes.astype(np.int32),
            threshold=nodes.astype(np.float32),
            left=nodes.astype(np.uint8),
            value=np.zeros((0, 2**depth)),
        )

    # --- as arrays --------------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the forest as named arrays; where it knows sites also ``sites`` (K,
        L), their names in UTF-8, and ``sides`` (K, T, 2^depth - 1).
        """
        facts = (
            np.array([self.stage], np.int64),
            self.base,
            np.concatenate([np.zeros(0, np.float32), *self.edges]),
            np.array([len(e) for e in self.edges], np.int64),
        )
        arrays: dict[str, NDArray[Any]] = dict(
            zip(NAMES, (*facts, self.feature, self.threshold, self.left, self.value), strict=True)
        )
        if self.sides:
            names = np.array([name.encode() for name in self.sides])
            arrays["sites"] = names.view(np.uint8).reshape(len(names), -1)
            arrays["sides"] = np.stack(list(self.sides.values()))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]) -> "Forest":
        """Undo :meth:`to_arrays`, by name or in that order. Raises ``ValueError`` for
        other arrays.
        """
        sides: dict[str, NDArray[np.uint8]] = {}
        if isinstance(arrays, Mapping):
            if "sites" in arrays:
                names = (bytes(name).rstrip(b"\0").decode() for name in arrays["sites"])
                sides = dict(zip(names, arrays["sides"].copy(), strict=True))
            if missing := [name for name in NAMES if name not in arrays]:
                raise ValueError(
                    f"no array {missing[0]!r} among {list(arrays)[:4]}: this is not a model of "
                    "histogram boosting"
                )
            arrays = [arrays[name] for name in NAMES]
        stage, base, flat, sizes, feature, threshold, left, value = arrays
        ends = np.cumsum(sizes)
        edges = [
            np.asarray(flat[end - size : end], np.float32)
            for end, size in zip(ends, sizes, strict=True)
        ]
        return cls(
            value.shape[1].bit_length() - 1,
            edges,
            int(stage[0]),
            base.copy(),
            feature.copy(),
            threshold.copy(),
            left.copy(),
            value.copy(),
            sides,
        )

    def of_site(self, name: str) -> "Forest":
        """Return the forest for the rows of one site; "": of one that it does not know,
        whose rows go with most others at splits by site. Raises ``ValueError`` for
        another unknown name.
        """
        if name and name not in self.sides:
            known = ", ".join([*self.sides][:5]) or "none"
            raise ValueError(f"no site {name!r}: there are {known}; '' is for any other")
        return replace(self, left=self.sides.get(name, self.left), sides={})

    # --- evaluation -------------------------------------------------------------------

    @property
    def outputs(self) -> int:
        """The number of outputs: 1, or as many as classes."""
        return len(self.base)

    @property
    def finished(self) -> int:
        """The number of finished trees."""
        return len(self.feature) - (self.stage > GROW)

    def add_to(self, values: Floats, x: NDArray[np.float32], first: int = 0) -> None:
        """Add the finished trees from ``first`` on, one after the other, to ``values``
        (n,), of several outputs (n, outputs), at x (n, F).
        """
        columns = values.reshape(len(x), -1)
        if (self.feature[first:] == x.shape[1]).any():  # its site, as a missing value
            x = np.column_stack([x, np.full(len(x), np.nan, np.float32)])
        for tree in range(first, self.finished):
            columns[:, tree % self.outputs] += self.value[tree, self._descend(tree, x)]

    def values(self, x: NDArray[np.float32]) -> Floats:
        """Return the values (n,), of several outputs (n, outputs), of the function at x
        (n, F), NaN where a value is missing.
        """
        out = np.tile(self.base, (len(x), 1))
        self.add_to(out, x)
        return out[:, 0] if self.outputs == 1 else out

    def _descend(self, tree: int, x: NDArray[np.float32]) -> Ints:
        """Return the leaf (n,) of each row of x (n, F), or (n, F + 1) with the site."""
        rows, at = np.arange(len(x)), np.zeros(len(x), np.int64)
        for level in range(self.depth):
            node = at + 2**level - 1
            feature = self.feature[tree, node]
            seen = x[rows, feature]
            right = np.where(
                np.isnan(seen), self.left[tree, node] == 0, seen > self.threshold[tree, node]
            )
            at = 2 * at + (right & (feature >= 0))
        return at

    def digest(self, trees: int) -> int:
        """Return a number that identifies the first trees and the constant."""
        parts = (self.feature, self.threshold, self.left, self.value)
        content = b"".join(np.ascontiguousarray(part[:trees]).tobytes() for part in parts)
        return int.from_bytes(
            blake2b(content + self.base.tobytes(), digest_size=7).digest(), "little"
        )

    # --- what the next step needs -----------------------------------------------------

    def open_leaves(self) -> Ints:
        """Return the leaves that could be split next, as places on their level."""
        level = self.stage - GROW
        if level == 0:
            return np.zeros(1, np.int64)
        above = np.flatnonzero(self.feature[-1, 2 ** (level - 1) - 1 : 2**level - 1] >= 0)
        return np.stack([2 * above, 2 * above + 1], 1).ravel()

    def length(self) -> int:
        """Return how many numbers a client must send."""
        cells = int(widths(self.edges).sum())
        if self.stage < GROW:
            return 1 + self.outputs + cells
        return len(self.open_leaves()) * CHANNELS * cells

    def sums(
        self, x: NDArray[np.float32], y: NDArray[Any], values: Floats, loss: str, least: int = 1
    ) -> Ints:
        """Return a client's sums (:meth:`length`,) for the next step, given the
        function's values (n,) at its rows. ``least``: of the rows in each bin of a leaf
        that has any, if no value of x is in fewer.

        For bins: the number of rows, the rows with label 1 (in regression: the total of
        the targets; with several outputs: the rows of each class), counts by cell. For
        trees: G, H and n by leaf, feature and bin.
        """
        if self.stage < GROW:
            several = np.bincount(y, minlength=self.outputs) if self.outputs > 1 else None
            totals = [total_of(loss, y)] if several is None else several
            return np.concatenate([[len(y)], totals, counted(x, self.edges)]).astype(np.int64)
        leaves = self.open_leaves()
        place = np.full(2 ** (self.stage - GROW), -1, np.int64)
        place[leaves] = np.arange(len(leaves))
        at, cells = self.binned(x, least)
        if self.outputs == 1:
            g, h = derivatives(loss, values, y)
        else:
            g, h = class_derivatives(values, y, self.finished % self.outputs)
        return leaf_sums(cells, self.edges, place[at], len(leaves), g, h).ravel()

    def binned(self, x: NDArray[np.float32], least: int) -> tuple[Ints, Ints]:
        """Return the leaf (n,) and the bins (n, F) of each row in the tree that is
        being grown.

        After a split both leaves merge the same neighbouring bins, and the next split
        goes by the merged ones. So the sums of a leaf that another round reports, or
        that are a difference of such, are never over fewer than ``least`` rows.
        """
        rows, cells, at = np.arange(len(x)), cells_of(x, self.edges), np.zeros(len(x), np.int64)
        for level in range(self.stage - GROW):
            node = at + 2**level - 1
            feature, threshold = self.feature[-1, node], self.threshold[-1, node]
            right = (feature == x.shape[1]) & (self.left[-1, node] == 0)
            for f in np.unique(feature[(feature >= 0) & (feature < x.shape[1])]):
                mine, bins = feature == f, cells[:, f]
                cut = np.searchsorted(self.edges[f], threshold, side="left")
                missing = bins == len(self.edges[f]) + 1
                right |= mine & np.where(missing, self.left[-1, node] == 0, bins > cut)
            at = 2 * at + right
            for parent in np.unique(at // 2) if least > 1 else ():
                mine = rows[at // 2 == parent]
                for f in range(cells.shape[1]):
                    cells[mine, f] = merged(cells[mine, f], at[mine] % 2, least)
        return at, cells

    def fault(self, sums: Ints, loss: str) -> str:
        """Return why ``sums`` cannot be those of any rows, or ""."""
        if self.stage >= GROW:
            return sums_fault(self._by_leaf(sums), self.edges, loss)
        rows, totals, counts = int(sums[0]), sums[1 : 1 + self.outputs], sums[1 + self.outputs :]
        if self.outputs > 1 and totals.sum() != rows:
            return "other numbers of rows of all classes than rows"
        for total in totals.tolist():
            if fault := total_fault(loss, rows, total):
                return fault
        if (counts < 0).any():
            return "counts below 0"
        return (
            ""
            if (np.add.reduceat(counts, starts(self.edges)) == rows).all()
            else "a feature must have one value per row"
        )

    def rows(self, sums: Ints) -> int:
        """Return over how many rows the ``sums`` of :meth:`sums` are."""
        if self.stage < GROW:
            return int(sums[0])
        return int(self.of_leaves(sums)[:, 2].sum())

    def _by_leaf(self, sums: Ints) -> Ints:
        return sums.reshape(len(self.open_leaves()), CHANNELS, -1)

    # --- the next step ----------------------------------------------------------------

    def of_leaves(self, sums: Ints) -> Ints:
        """Return G, H and n by leaf (leaves, 3) in the ``sums`` of :meth:`sums`."""
        return np.asarray(self._by_leaf(sums)[:, :, : int(widths(self.edges)[0])].sum(2))

    def step(
        self,
        sums: Ints,
        growth: Growth,
        loss: str,
        bins: int,
        sites: Mapping[str, Ints] | None = None,
    ) -> None:
        """Take the next step with ``sums``, those of all clients: finer cells, bins, or
        one more level of a tree. ``sites``: of each, by name, the sums by leaf
        (:meth:`of_leaves`), if leaves may be split by site.
        """
        if self.stage >= GROW:
            self._grow(self._by_leaf(sums), growth, sites or {})
            return
        ends = np.cumsum(widths(self.edges))[:-1]
        # those of missing values do not matter here
        counts = [part[:-1] for part in np.split(sums[1 + self.outputs :], ends)]
        if self.stage == COARSE:
            self.edges = [refine(own, n, CELLS) for own, n in zip(self.edges, counts, strict=True)]
        else:
            self.edges = [cuts(own, n, bins) for own, n in zip(self.edges, counts, strict=True)]
            rows, totals = int(sums[0]), sums[1 : 1 + self.outputs]
            self.base = (
                np.array([start_value(loss, rows, int(totals[0]))])
                if self.outputs == 1
                else np.log((totals + 0.5) / (rows + 0.5 * self.outputs))
            )
        self.stage += 1

    def _grow(self, sums: Ints, growth: Growth, sites: Mapping[str, Ints]) -> None:
        leaves, level = self.open_leaves(), self.stage - GROW
        for name in sorted(sites.keys() - self.sides.keys()):
            self.sides[name] = self.left.copy()
        if level == 0:
            more = ((0, 1), (0, 0))
            self.feature = np.pad(self.feature, more, constant_values=-1)
            self.threshold, self.left = (
                np.pad(self.threshold, more),
                np.pad(self.left, more, constant_values=1),
            )
            self.value = np.pad(self.value, more)
            for name, left in self.sides.items():
                self.sides[name] = np.pad(left, more, constant_values=1)
        splits = best_splits(sums, self.edges, growth)
        goes_left = {}
        if known := sorted(sites):  # the order of equal sites is not that of the replies
            stacked = np.stack([sites[name] for name in known], 1)
            splits, lefts = split_by_site(splits, stacked, len(self.edges), growth)
            goes_left = dict(zip(known, lefts.T, strict=True))
        nodes, below = leaves + 2**level - 1, 2 ** (self.depth - level - 1)
        self.feature[-1, nodes], self.threshold[-1, nodes], self.left[-1, nodes] = (
            splits.feature,
            splits.threshold,
            splits.left,
        )
        for name, left in self.sides.items():
            left[-1, nodes] = goes_left.get(name, splits.left)
        # a leaf's value is that of all places below it
        for leaf, pair in zip(leaves, splits.children, strict=True):
            for side in (0, 1):
                first = (2 * leaf + side) * below
                self.value[-1, first : first + below] = pair[side]
        over = level == self.depth - 1 or (splits.feature < 0).all()
        self.stage = GROW if over else self.stage + 1
