"""Names of clients that come with the data: values of the column ``data.natural-id``,
files, clients of a table.

Clients are numbered in the order of their names, so that a number means another client
once one is left out. People are shown names; messages, seeds and stores use numbers.
"""

from collections.abc import Iterable
from typing import Any

from fedapps.formats import one_line
from fedapps.tasks.capabilities import NamesClients

#: The most characters of a name.
LONGEST = 40


def client_names(task: Any, num_clients: int) -> tuple[str, ...]:
    """Return the names of clients 0, 1, ...; () where they have only numbers."""
    given = task.client_names(num_clients) if isinstance(task, NamesClients) else ()
    names = readable(given[:num_clients])
    return () if names == tuple(map(str, range(len(names)))) else names


def readable(names: Iterable[str]) -> tuple[str, ...]:
    """Return names, which come from outside, as unique short texts of one line."""
    out: dict[str, None] = {}
    for place, name in enumerate(names):
        plain = unique = one_line(name, LONGEST) or f"client {place}"
        count = 1
        while unique in out:
            count += 1
            unique = f"{plain} ({count})"
        out[unique] = None
    return tuple(out)
