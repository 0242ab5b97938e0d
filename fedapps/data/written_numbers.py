"""Numbers as people write them: thousands separators, decimal commas, percent, money.
All cells of a column together decide which convention it follows.
"""

import re
from collections.abc import Collection, Iterable

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
    a fraction or, in a file of ``semicolons`` without sure points, each with a comma.
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
        longest = max((len(x.lstrip("+-")) for x in bare.values() if not marks & set(x)), default=0)
        sure = longest > 3 if marks == {"."} else 0 < longest <= 3  # 1500 beside 1.100
        if len(marks) > 1 or not sure:
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
