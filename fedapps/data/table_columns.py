"""Columns of a table: as they were written, and as numbers, categories, classes and
targets. Messages tell the type of a value, never a sample's value: of a site's own
table the server reads them.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.frame import is_text
from fedapps.data.source import Source
from fedapps.data.sources import open_split
from fedapps.data.written_numbers import as_numbers
from fedapps.errors import UserError
from fedapps.notes import logger

Floats = NDArray[np.float64]
#: The cells of a column; a list, or an array of pandas.
Column = Sequence[Any] | NDArray[Any]


def read_columns(source: str, split: str, by_file: bool = False) -> dict[str, list[Any]]:
    """Return the columns of a site's table: a file or folder, read as any other.

    ``by_file``: with a column ``@file``, of a folder with a file of each client.
    """
    given = Source(source, split, client="sites.client")
    table = open_split(given, by_file)
    if not len(table):
        raise UserError(f"{source}: no rows below the line of column names")
    columns = {name: table[name] for name in table.columns}
    said = [*table.account]
    for name, column in columns.items():
        if is_text(table.columns[name].type):
            columns[name] = [None if cell is None else cell.strip() or None for cell in column]
            with suppress(UserError):  # columns that nobody asks for may be doubtful
                if (found := as_numbers(column, name, given, table.commas)) and found[1]:
                    columns[name] = [None if np.isnan(v) else v for v in found[0].tolist()]
                    said.append(f"{name}: read as numbers {found[1]}")
    for line in said:
        logger.info("%s: %s", source, line)
    return columns


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


def cells(column: Column) -> list[Any]:
    """Return the cells of a column as Python's objects, dates as such."""
    if not isinstance(column, np.ndarray):
        return list(column)
    dates = column.dtype.kind == "M"
    listed: list[Any] = (column.astype("M8[us]") if dates else column).tolist()
    return listed


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty."""
    return value is None or (isinstance(value, float) and np.isnan(value))


def ordered(values: Iterable[Any]) -> list[Any]:
    """Return the different values, sorted; those of one type are together."""
    return sorted(set(values), key=lambda value: (str(type(value)), value))


def numbers(column: Column, what: str, remedy: str) -> Floats:
    """Return a column of numbers (N,), NaN where one is missing.

    Raises ``UserError``, which begins with ``what``, if there is something else in it.
    """
    listed = cells(column)
    for value in listed:
        if not is_missing(value) and not (isinstance(value, int | float) and np.isfinite(value)):
            if isinstance(value, float):
                raise UserError(f"{what} holds infinite numbers: mend them, or {remedy}")
            raise UserError(f"{what} holds a {_kind(value)} value, which is no number: {remedy}")
    return np.array([np.nan if is_missing(value) else float(value) for value in listed])


def dummies(column: Column, levels: Iterable[Any]) -> list[Floats]:
    """Return whether the cells are each of ``levels`` (N,), NaN in empty cells."""
    listed = [None if is_missing(value) else value for value in cells(column)]
    return [
        np.array([np.nan if value is None else float(value == level) for value in listed])
        for level in levels
    ]


def targets(column: Column, what: str) -> Floats:
    """Return a column (N,) of numbers to predict. Raises ``UserError``, which begins
    with ``what``.
    """
    listed = [None if is_missing(value) else value for value in cells(column)]
    for value in listed:
        if value is not None and not isinstance(value, int | float):
            raise UserError(no_target(what, f"a {_kind(value)} value"))
    found = np.array([np.nan if value is None else float(value) for value in listed])
    check_targets(found[:, None], what)
    return found


def no_target(what: str, kind: str) -> str:
    """Return the message for a column to predict that holds no numbers but ``kind``."""
    return (
        f"{what}: holds {kind}, and regression predicts numbers: name another column, or choose "
        "task = 'classification'"
    )


def check_targets(y: Floats, what: str, first: int = 0) -> None:
    """Raise ``UserError``, which begins with ``what``, unless numbers to predict (N,
    targets) are finite and differ. ``first``: the number of the
    first row in its file.
    """
    wrong = ~np.isfinite(y).all(1)
    if wrong.any():
        raise UserError(
            f"{what}: {int(wrong.sum())} of {len(y)} rows hold no value to predict, or an infinite "
            f"one (first: row {int(np.argmax(wrong)) + first}): fill or drop them"
        )
    constant = np.flatnonzero(np.ptp(y, axis=0) == 0)
    if len(constant):
        which = f" at place {constant[0] + 1}" if y.shape[1] > 1 else ""
        raise UserError(
            f"{what}: has one and the same value{which} in every row: there is nothing to predict"
        )


def _kind(value: Any) -> str:
    return "date" if isinstance(value, date) else type(value).__name__
