"""Options, each declared once: a field of a frozen dataclass with its type, default,
bounds and one line of help.

    @dataclass(frozen=True)
    class FedProxOptions(Options):
        \"\"\"Options of FedProx.\"\"\"

        mu: float = option(0.01, "weight of the proximal term", low=0)

The checks, the block of settings in ``pyproject.toml`` and the tables of the
documentation all follow from these fields.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from fedapps.algorithms.common.checks import check_choice, check_range

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
