"""Name patterns that select which arrays of a model are sent."""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def travels(name: str, share: Sequence[str], keep: Sequence[str]) -> bool:
    """Return whether an array of this name is shared: it matches one of ``share``, and
    none of ``keep``.

    A pattern is a name in which ``*`` matches any characters, ``?`` one character and
    ``[ab]`` one of the listed characters.
    """
    return any(fnmatchcase(name, p) for p in share) and not any(fnmatchcase(name, p) for p in keep)
