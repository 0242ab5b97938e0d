"""Columns of a table as numbers, words and categories. Messages tell the type of a
value, never a sample's value: of a site's own table the server reads them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data import written_numbers
from fedapps.data.columns import coded, word
from fedapps.data.frame import Column, Frame, is_number, is_text
from fedapps.data.source import Source
from fedapps.errors import UserError, refuse_first

Floats = NDArray[np.float64]
#: A column of text with so few values is one of categories, even if most are numbers.
FEW_VALUES = 12


def numbers_in(data: Frame, name: str, source: Source) -> tuple[Floats, str] | None:
    """Return a column of numbers (N,), NaN where one is missing, and how they were
    written, "" as usual; None for other things. Raises ``UserError`` if it is doubtful
    which numbers they are.
    """
    column = data.columns[name]
    kind = str(column.type)
    if kind == "null":
        return np.full(len(column), np.nan), ""
    if is_text(column.type):
        return as_numbers(column, name, source, data.commas)
    if name in data.classes or not (is_number(column.type) or kind.startswith("decimal")):
        return None
    whole = column.cast("int8") if kind == "bool" else column
    return np.asarray(whole.cast("float64", safe=False).to_numpy(), np.float64), ""


class OddCellsError(UserError):
    """A column may or may not be one of numbers."""


def as_numbers(
    column: Column, name: str, source: Source, commas: bool
) -> tuple[Floats, str] | None:
    """Return a column of text as numbers, NaN where one is missing, and how they were
    read; None if it is no column of numbers. Raises ``OddCellsError`` if most but not
    all cells are numbers, or it is doubtful which.
    """
    values, codes = coded(column)
    texts = [value.strip() for value in values]
    counts: Counter[str] = Counter()
    for text, count in zip(texts, np.bincount(codes[codes >= 0]).tolist(), strict=True):
        counts[text] += count
    del counts[""]
    total, odd = counts.total(), {text for text in counts if not written_numbers.is_number(text)}
    plain, how = total - sum(counts[text] for text in odd), ""
    words = not any(re.search(r"\d", text) for text in odd) and plain > 0.9 * total
    other = "write its values in sites.columns" if source.is_site else "name it in data.categorical"
    remedy = f"mend them, or {other}" + " or data.drop" * (not source.is_site)
    if counts and {text.lower() for text in counts} <= {"true", "false"}:
        found = {text: float(text.lower() == "true") for text in counts}
    elif not total or plain < total / 2 or (odd and len(counts) <= FEW_VALUES and not words):
        return None  # also 0, 1, 2, 3+, but not a few "unknown" among numbers
    elif odd:
        strange = [place for place, text in enumerate(texts) if text in odd]
        row = int(np.isin(codes, strange).argmax()) + source.first_row
        raise OddCellsError(
            f"column {name!r}: {total - plain} of {len(codes)} rows hold text where the others "
            f"hold numbers (first: row {row} of {source}): {remedy}"
        )
    else:
        try:
            found, how = written_numbers.numbers_of(counts, commas)
        except written_numbers.DoubtfulError as error:
            raise OddCellsError(
                f"column {name!r} of {source}: it is doubtful which numbers it holds: {error}: "
                f"{remedy}"
            ) from None
    return np.array([*(found.get(text, np.nan) for text in texts), np.nan])[codes], how


def finite(column: Floats, name: str, source: Source) -> NDArray[np.float32]:
    """Return numbers in the precision of inputs. Raises ``UserError`` if some are
    infinite there, or their differences are lost.
    """
    wrong = np.flatnonzero(np.abs(column) > np.finfo(np.float32).max).tolist()
    remedy = ", or name it in data.drop" * (not source.is_site)
    refuse_first(
        (
            wrong,
            f"column {name!r} holds infinite or too large numbers (first: row "
            f"{sum(wrong[:1]) + source.first_row} of {source}): mend them{remedy}",
        ),
        (
            (known := column[np.isfinite(column)]).size  # an error of 2 % of the deviation
            and 0 < known.std() < 2**-18 * np.abs(known).max(),
            f"column {name!r} of {source}: its numbers differ by too little for their size, so "
            f"single precision loses that: take a number off all of them{remedy}",
        ),
    )
    return column.astype(np.float32)


def words(data: Frame, name: str) -> list[str]:
    """Return the cells of a column as words, "" where one is missing."""
    return [
        "" if cell is None or cell != cell else word(cell).strip()  # NaN differs from itself
        for cell in data[name]
    ]


def dummies(
    name: str, levels: Sequence[Any], codes: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    """Return the features of a category by their names: of two levels whether it is the
    second, of more whether it is each; NaN where none is (``codes`` (N,) of -1).
    """
    first = 1 if len(levels) == 2 else 0
    return {
        f"{name}={word(level)}": np.where(codes < 0, np.nan, codes == place).astype(np.float32)
        for place, level in enumerate(levels[first:], first)
    }


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
