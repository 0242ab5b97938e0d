"""Columns of a site's table, as they were written, as numbers, and as categories whose
values the settings name.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.source import Source
from fedapps.data.sources import open_split
from fedapps.errors import UserError

Floats = NDArray[np.float64]


def read_columns(source: str, split: str, by_file: bool = False) -> dict[str, list[Any]]:
    """Return the columns of a CSV file (empty cells as None, numbers as floats) or of a
    folder that ``datasets`` reads.

    ``by_file``: with a column ``@file``, of a folder with a file of each client.
    """
    path = Path(source)
    if by_file or not path.is_file():
        table = open_split(Source(source, split, table="tabular", client="sites.client"), by_file)
        return {name: list(table[name][:]) for name in table.column_names}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise UserError(f"{source}: no rows below the line of column names")
    if any(None in row or None in row.values() for row in rows):
        raise UserError(f"{source}: not every row has as many cells as there are columns")
    return {name: [_cell(row[name]) for row in rows] for name in rows[0]}


def _cell(text: str) -> float | str | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return text.strip()


def word(value: Any) -> str:
    """Return a value as written in the settings: 1.0 as 1, and numbers of people with
    all their digits.
    """
    return (
        f"{value:.15g}"
        if isinstance(value, float)
        else str(int(value))
        if isinstance(value, bool)
        else str(value)
    )


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty."""
    return value is None or (isinstance(value, float) and np.isnan(value))


def numbers(source: str, name: str, values: list[Any]) -> Floats:
    """Return a column of numbers (N,), NaN where one is missing. Raises ``UserError``
    if there is something else in it.
    """
    for value in values:
        if not is_missing(value) and not (isinstance(value, int | float) and np.isfinite(value)):
            kind = "infinite" if isinstance(value, float) else type(value).__name__
            raise UserError(  # which the server reads: it tells the type, never a sample's value
                f"{source}: column {name!r} holds a {kind} value, which is no number: write its "
                "values in sites.columns"
            )
    return np.array([np.nan if is_missing(value) else float(value) for value in values])


def dummies(
    source: str, name: str, values: list[Any], levels: tuple[str, ...]
) -> dict[str, Floats]:
    """Return a feature (N,) for each of a category's values, of two for the second
    alone; NaN in empty cells. Raises ``UserError``.
    """
    words = [None if is_missing(value) else word(value) for value in values]
    strange = sorted({said for said in words if said is not None and said not in levels})
    if strange:
        raise UserError(
            f"{source}: column {name!r} holds {strange[0]!r}, but sites.columns names "
            f"{', '.join(levels)} for it"
        )
    return {
        f"{name}={level}": np.array(
            [np.nan if said is None else float(said == level) for said in words]
        )
        for level in (levels[1:] if len(levels) == 2 else levels)
    }
