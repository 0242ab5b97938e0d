"""Missing values and the scale of the numbers in a table."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapps.data.table_columns import Floats


def standardised(x: Floats, scaled: NDArray[np.bool_], train: NDArray[np.int64]) -> Floats:
    """Return all rows of a client, with missing values filled and numeric columns
    standardised by the statistics of the rows ``train``.

    The (population) standard deviation is computed after filling. Columns without two
    different values in those rows are 0.
    """
    return filled(x, scaled, columns_of(x[train]))


@dataclass(frozen=True)
class Numeric:
    """What is known of each column: mean and deviation (F,), and whether it has two
    different values.
    """

    mean: Floats
    deviation: Floats
    varies: NDArray[np.bool_]


def columns_of(seen: Floats) -> Numeric:
    """Return mean, deviation and whether they vary of the columns of rows (n, F), NaN
    where a value is missing.
    """
    known = ~np.isnan(seen)
    mean = np.where(known, seen, 0).sum(0) / np.maximum(known.sum(0), 1)
    varies = np.where(known, seen, -np.inf).max(0) > np.where(known, seen, np.inf).min(0)
    # the filled values are at the mean
    return Numeric(mean, np.where(known, seen - mean, 0).std(0), varies)


def filled(x: Floats, scaled: NDArray[np.bool_], by: Numeric) -> Floats:
    """Return rows (n, F) with missing values at the mean, numeric columns standardised,
    and those that do not vary at 0.
    """
    whole = np.where(np.isnan(x), by.mean, x)
    out: Floats = np.where(scaled, (whole - by.mean) / np.where(by.varies, by.deviation, 1), whole)
    return np.where(by.varies, out, 0.0)
