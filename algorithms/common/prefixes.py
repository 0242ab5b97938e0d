"""Named values of several owners in one mapping: each owner's names begin with its own
prefix.
"""

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")


def under(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values with the prefix put before their names."""
    return {f"{prefix}{name}": value for name, value in values.items()}


def within(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return those values whose names begin with the prefix, under the names that
    follow it.
    """
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
