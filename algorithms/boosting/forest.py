"""The state of histogram boosting as named arrays: a sum of trees, grown level by
level, and the bins of its features.

``stage`` is the next step: 0 and 1 need counts of values in cells; 2 + d needs the sums
of the leaves on level d of the tree that is being grown. Trees have the layout of
``algorithms.boosting.trees``, with ``feature`` -1 where a node is not split: all rows
there go left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.boosting.bins import (
    Edges,
    cells_of,
    counted,
    cuts,
    first_edges,
    refine,
    starts,
    widths,
)
from fedapps.algorithms.boosting.histogram_trees import (
    CHANNELS,
    Floats,
    Growth,
    Ints,
    best_splits,
    class_derivatives,
    derivatives,
    leaf_sums,
    start_value,
    sums_fault,
    total_fault,
    total_of,
)
from fedapps.algorithms.boosting.min_cell import merged

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
    the trees; the last one is unfinished above stage 2.
    """

    depth: int
    edges: list[Edges]
    stage: int = COARSE
    base: Floats = field(default_factory=lambda: np.zeros(1))
    feature: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    threshold: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    left: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    value: Floats = field(default_factory=lambda: np.zeros((0, 0)))

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
        """Return the forest as named arrays."""
        facts = (
            np.array([self.stage], np.int64),
            self.base,
            np.concatenate([np.zeros(0, np.float32), *self.edges]),
            np.array([len(e) for e in self.edges], np.int64),
        )
        return dict(
            zip(NAMES, (*facts, self.feature, self.threshold, self.left, self.value), strict=True)
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]) -> "Forest":
        """Undo :meth:`to_arrays`, by name or in that order. Raises ``ValueError`` for
        other arrays.
        """
        if isinstance(arrays, Mapping):
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
        )

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
        """Return the leaf (n,) of each row."""
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
            right = np.zeros(len(x), bool)
            for f in np.unique(feature[feature >= 0]):
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
        return int(self._by_leaf(sums)[:, 2, : int(widths(self.edges)[0])].sum())

    def _by_leaf(self, sums: Ints) -> Ints:
        return sums.reshape(len(self.open_leaves()), CHANNELS, -1)

    # --- the next step ----------------------------------------------------------------

    def step(self, sums: Ints, growth: Growth, loss: str, bins: int) -> None:
        """Take the next step with ``sums``, those of all clients: finer cells, bins, or
        one more level of a tree.
        """
        if self.stage >= GROW:
            self._grow(self._by_leaf(sums), growth)
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

    def _grow(self, sums: Ints, growth: Growth) -> None:
        leaves, level = self.open_leaves(), self.stage - GROW
        if level == 0:
            more = ((0, 1), (0, 0))
            self.feature = np.pad(self.feature, more, constant_values=-1)
            self.threshold, self.left = (
                np.pad(self.threshold, more),
                np.pad(self.left, more, constant_values=1),
            )
            self.value = np.pad(self.value, more)
        splits = best_splits(sums, self.edges, growth)
        nodes, below = leaves + 2**level - 1, 2 ** (self.depth - level - 1)
        self.feature[-1, nodes], self.threshold[-1, nodes], self.left[-1, nodes] = (
            splits.feature,
            splits.threshold,
            splits.left,
        )
        # a leaf's value is that of all places below it
        for leaf, pair in zip(leaves, splits.children, strict=True):
            for side in (0, 1):
                first = (2 * leaf + side) * below
                self.value[-1, first : first + below] = pair[side]
        over = level == self.depth - 1 or (splits.feature < 0).all()
        self.stage = GROW if over else self.stage + 1
