"""Groups of neighbouring values, so that no sum is over fewer rows than allowed.

Each feature is treated alone: its values, in order and with missing ones last, form
groups of at least ``least`` rows, and every value becomes the median of its group.
Equal values stay together.

Source: univariate microaggregation: Domingo-Ferrer, Mateo-Sanz, "Practical
Data-Oriented Microaggregation for Statistical Disclosure Control", IEEE Transactions on
Knowledge and Data Engineering 14(1), 2002. Here groups are formed from the smallest
value upwards, and the median stands for a group.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
