"""Checks of option values; error messages state the rule, the value and the remedy in
one line.
"""

import difflib
import math
from collections.abc import Iterable


def check_range(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number in [low, high]; an open
    end excludes the bound itself.
    """
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    if not (math.isfinite(value) and above and below):
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if open_high or high == math.inf else "]"
        raise ValueError(f"{name} = {value}: choose a value in {left}{low:g}, {high:g}{right}")


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``; the message suggests
    the closest one.
    """
    options = list(choices)
    if value not in options:
        raise ValueError(
            f"{name} = {value!r}: {nearest(value, options)}choose one of {', '.join(options)}"
        )


def nearest(word: str, options: Iterable[str]) -> str:
    """Return "did you mean 'X'? " for the option closest to a misspelt word, in any
    case of letters, or "" if none is close.
    """
    folded = {option.casefold(): option for option in options}
    close = difflib.get_close_matches(word.casefold(), folded, n=1)
    return f"did you mean {folded[close[0]]!r}? " if close else ""
