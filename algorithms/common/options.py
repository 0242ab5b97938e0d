"""Options, each declared once: a field of a frozen dataclass with its type, default,
bounds and one line of help.

    @dataclass(frozen=True)
    class FedProxOptions(Options):
        \"\"\"Options of FedProx.\"\"\"

        mu: float = option(0.01, "weight of the proximal term", low=0)

The checks, the block of settings in ``pyproject.toml`` and the tables of the
documentation all follow from these fields.

The messages of the checks state the rule, the value and the remedy in one line.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Self


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


KINDS: dict[type, type] = {int: Integral, float: Real}


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text, without blanks and empty ones."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


@dataclass(frozen=True)
class Declared:
    """The declaration that :func:`option` adds to a field's type and default; an open
    end excludes the bound itself.
    """

    help: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values as text: ``"a | b"``, ``"[0, 1)"``, ``"from 1"``; "" if
        any value is allowed.
        """
        if self.choices:
            return " | ".join(self.choices)
        if self.low == -math.inf and self.high == math.inf:
            return ""
        if self.high == math.inf:
            return f"{'above' if self.open_low else 'from'} {self.low:g}"
        return (
            f"{'(' if self.open_low else '['}{self.low:g}, "
            f"{self.high:g}{')' if self.open_high else ']'}"
        )


def option(
    default: bool | int | float | str,
    help: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    choices: Iterable[str] = (),
) -> Any:
    """Return a dataclass field with its declaration. ``help``: one line, which need not
    repeat bounds and choices.
    """
    declared = Declared(help, low, high, open_low, open_high, tuple(choices))
    return field(default=default, metadata={"option": declared})


def with_choices(kind: type, name: str, choices: Iterable[str]) -> Any:
    """Declare the option ``name`` of ``kind`` again, for a subclass that knows the
    possible values.
    """
    (part,) = (part for part in fields(kind) if part.name == name)
    return field(
        default=part.default,
        metadata={"option": replace(part.metadata["option"], choices=tuple(choices))},
    )


@dataclass(frozen=True)
class Options:
    """Base of dataclasses of options. ``ValueError`` names the option, its value and
    what is allowed.
    """

    #: Of a method: the values of its paper's algorithm where our defaults differ.
    PRINTED: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def printed(cls, **given: Any) -> Self:
        """Return the options of the algorithm as its paper prints it, but for those
        that are given.
        """
        return cls(**{**cls.PRINTED, **given})

    def __post_init__(self) -> None:
        """Check every option alone, then all together with :meth:`check`."""
        for part in fields(self):
            declared: Declared | None = part.metadata.get("option")
            if declared is None:
                continue
            value: Any = getattr(self, part.name)
            kind = type(part.default)
            if not issubclass(type(value), KINDS.get(kind, kind)) or (
                type(value) is bool and kind is not bool
            ):
                shown = f"{type(self).__name__}({part.name}={part.default!r})"
                raise ValueError(f"{kebab(part.name)} = {value!r}: must be like {shown}")
            if declared.choices:
                check_choice(kebab(part.name), value, declared.choices)
            elif isinstance(value, int | float):
                check_range(
                    kebab(part.name), value, declared.low, declared.high,
                    open_low=declared.open_low, open_high=declared.open_high,
                )  # fmt: skip
        self.check()

    def check(self) -> None:
        """Check rules over several options; raise ``ValueError``."""


@cache
def kebab(name: str) -> str:
    """Return a field's name as a key: ``num_rounds`` -> ``num-rounds``, ``lambda_`` ->
    ``lambda``.
    """
    return name.rstrip("_").replace("_", "-")
