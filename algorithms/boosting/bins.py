"""Bins of features whose values stay on the clients: quantiles from counts in cells,
which are added up over clients.

A cell holds the values above one float32 and up to another. The first cells are the
same for any data: one for each sign and power of two. :func:`refine` divides cells that
hold values into equal steps between two powers of two, more finely where there are more
values. :func:`cuts` then makes bins with about equally many values from the last
counts. Counts are whole numbers, so the bins do not depend on how rows are spread over
clients. A message has at most twice as many cells per feature as the setting.

Sources: quantiles from counts in cells that are fixed beforehand and therefore merge by
addition: Masson, Rim, Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with
Relative-Error Guarantees", VLDB 2019, arXiv 1908.10693.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Edges = NDArray[np.float32]
Counts = NDArray[np.int64]
LARGEST = np.finfo(np.float32).max
#: Bits of a float32 below its exponent.
_FRACTION = 23


def keys(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return whole numbers in the order of finite float32: consecutive ones belong to
    consecutive floats.
    """
    bits = (x + np.float32(0.0)).view(np.int32).astype(np.int64)  # there is one zero
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def of_keys(key: NDArray[np.int64]) -> NDArray[np.float32]:
    """Undo :func:`keys`."""
    size = np.abs(key).astype(np.uint32).view(np.float32)
    return np.where(key >= 0, size, -size).astype(np.float32)


def first_edges() -> Edges:
    """Return the edges (509,) of the first cells; zero and values near zero are in the
    middle cell.
    """
    powers = np.arange(1, 255, dtype=np.int64) << _FRACTION
    return of_keys(np.concatenate([-powers[::-1], powers - 1]))


def cells_of(x: NDArray[np.float32], edges: Sequence[Edges]) -> NDArray[np.int64]:
    """Return the cell (n, F) of every value of x (n, F): the number of edges below it;
    one more than the last for a missing one.
    """
    out = np.empty(x.shape, np.int64)
    for f, own in enumerate(edges):
        column = x[:, f]
        out[:, f] = np.where(
            np.isnan(column), len(own) + 1, np.searchsorted(own, column, side="left")
        )
    return out


def widths(edges: Sequence[Edges]) -> NDArray[np.int64]:
    """Return how many cells (F,) each feature has, the one of missing values
    included.
    """
    return np.array([len(own) + 2 for own in edges], np.int64)


def starts(edges: Sequence[Edges]) -> NDArray[np.int64]:
    """Return the position (F,) of each feature's first cell when the cells of all
    features are concatenated.
    """
    sizes = widths(edges)
    return np.cumsum(sizes) - sizes


def counted(x: NDArray[np.float32], edges: Sequence[Edges]) -> Counts:
    """Return how many values of x (n, F) are in each cell, all features one after the
    other, missing values as a feature's last.
    """
    return np.bincount(
        (cells_of(x, edges) + starts(edges)).ravel(), minlength=int(widths(edges).sum())
    ).astype(np.int64)


def refine(edges: Edges, counts: Counts, cells: int) -> Edges:
    """Return edges that divide the cells with values into about ``cells`` cells; empty
    cells are not divided. ``counts`` (len(edges) + 1,): values per cell.
    """
    occupied, low, high = _occupied(edges, counts)
    if not len(occupied):
        return edges[:0]
    total, cut = int(counts.sum()), []
    for place, below, top in zip(occupied, low, high, strict=True):
        parts = min(max(1, cells * int(counts[place]) // total), top - below + 1)
        cut += [
            below - 1,
            *(below - 1 + (top - below + 1) * part // parts for part in range(1, parts + 1)),
        ]
    ends = keys(np.array([-LARGEST, LARGEST], np.float32))
    new = np.unique(np.array(cut, np.int64))
    return of_keys(new[(new >= ends[0]) & (new < ends[1])])


def cuts(edges: Edges, counts: Counts, bins: int) -> Edges:
    """Return the edges of at most ``bins`` bins with about equally many values; if
    there are few different values, each has its own bin.

    ``counts`` (len(edges) + 1,). An edge is half-way between the cells of the values on
    its sides.
    """
    occupied, low, high = _occupied(edges, counts)
    if len(occupied) < 2:
        return edges[:0]
    seen = counts[occupied].cumsum()
    last = np.arange(len(occupied) - 1)
    if len(occupied) > bins:
        wanted = np.arange(1, bins) * int(seen[-1])
        last = np.unique(np.searchsorted(seen * bins, wanted, side="left"))
        last = last[last < len(occupied) - 1]
    left, right = of_keys(high[last]).astype(np.float64), of_keys(low[last + 1]).astype(np.float64)
    middle = (left / 2 + right / 2).astype(np.float32)
    return np.clip(middle, of_keys(high[last]), of_keys(low[last + 1] - 1))


def _occupied(
    edges: Edges, counts: Counts
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the cells that hold values, and the first and the last key of each."""
    ends = keys(np.array([-LARGEST, LARGEST], np.float32))
    inner = keys(edges)
    occupied = np.flatnonzero(counts > 0)
    return (
        occupied,
        np.concatenate([ends[:1], inner + 1])[occupied],
        np.concatenate([inner, ends[1:]])[occupied],
    )
