"""Numbers as people write them: thousands separators, decimal commas, percent, money.
All cells of a column together decide which convention it follows.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from fedapps.data.columns import coded
from fedapps.data.frame import Column
from fedapps.data.source import Source
from fedapps.errors import UserError

#: A column of text with so few values is one of categories, even if most are numbers.
FEW_VALUES = 12

_SIGN = re.compile(r"[%$€£¥₹]|\b(?:CHF|EUR|USD|GBP)\b")
_BLANK = re.compile(r"(?<=\d)[ \u00a0\u202f\u2019'](?=\d{3}(?!\d))")
_POINT = re.compile(
    r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf",
)
_COMMA = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d*)?|\d+,?\d*|,\d+)(?:[eE][+-]?\d+)?")


class DoubtfulError(ValueError):
    """It is not clear which numbers a column's cells stand for; says why."""


def _bare(text: str) -> str:
    """Return a number without sign of its unit, and without blanks between digits."""
    return _BLANK.sub("", _SIGN.sub("", text).replace("\u2212", "-").strip())


def is_number(text: str) -> bool:
    """Return whether a text is a number in some convention."""
    bare = _bare(text)
    return bool(_POINT.fullmatch(bare) or _COMMA.fullmatch(bare))


def has_decimal_commas(texts: Collection[str], semicolons: bool) -> bool:
    """Return whether all texts are numbers, some with a comma that can only be that of
    a fraction or, in a file of semicolons, each with a comma.
    """
    bare = [_bare(text) for text in texts]
    sure = not all(map(_POINT.fullmatch, bare)) or (semicolons and all("," in t for t in bare))
    return sure and all(map(_COMMA.fullmatch, bare))


def may_have_thousands(texts: Iterable[str | None]) -> bool:
    """Return whether all texts are numbers whose points may be those of thousands."""
    return all(_COMMA.fullmatch(text) for text in texts if text)


def numbers_of(texts: Collection[str], commas: bool = False) -> tuple[dict[str, float], str]:
    """Return the number that each text stands for, and in which way they were read, ""
    as usual. All texts are numbers (:func:`is_number`).

    ``commas``: the file writes decimal commas. Raises ``DoubtfulError``.
    """
    bare = {text: _bare(text) for text in texts}
    units = {"".join(_SIGN.findall(text)) for text in texts}
    if len(units) > 1:
        raise DoubtfulError(f"some have a sign ({max(units)}) that others lack")
    point, comma = (all(map(one.fullmatch, bare.values())) for one in (_POINT, _COMMA))
    if not point and not comma:
        raise DoubtfulError("some have a decimal comma, others a decimal point")
    marks = set("".join(bare.values())) & set(",.")
    if point and comma and marks and not commas:
        whole = [one.lstrip("+-") for one in bare.values() if not marks & set(one)]
        small = bool(whole) and all(len(one) <= 3 for one in whole)
        if len(marks) > 1 or small == (marks == {"."}):
            raise DoubtfulError(
                f"a {' or '.join(sorted(marks))} before three digits may part thousands or a "
                "fraction (write 1234 or 1.234)"
            )
    comma = comma and (commas or not point)
    part, thousands = (",", ".") if comma else (".", ",")
    said = [
        f"in {max(units)}" * bool(max(units)),
        "with a decimal comma" * (comma and part in marks),
        "with thousands separators" * (thousands in marks or any(map(_BLANK.search, texts))),
    ]
    values = {
        text: float(one.replace(thousands, "").replace(part, ".")) for text, one in bare.items()
    }
    return values, ", ".join(filter(None, said))


class OddCellsError(UserError):
    """A column may or may not be one of numbers."""


def as_numbers(
    column: Column, name: str, source: Source, commas: bool
) -> tuple[NDArray[np.float64], str] | None:
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
    total, odd = counts.total(), {text for text in counts if not is_number(text)}
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
            found, how = numbers_of(counts, commas)
        except DoubtfulError as error:
            raise OddCellsError(
                f"column {name!r} of {source}: it is doubtful which numbers it holds: {error}: "
                f"{remedy}"
            ) from None
    return np.array([*(found.get(text, np.nan) for text in texts), np.nan])[codes], how
