"""Positions of clients in arrays with one entry per client: position -> id, and id ->
position.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedapps.strategies.base.named_grid import ClientId, Numbered

Positions = NDArray[np.int64]


class Slots(Sequence[ClientId]):
    """Client ids by position. They take no memory if the grid numbers its clients, else
    a list and a dictionary.
    """

    def __init__(self, clients: Iterable[ClientId] = ()) -> None:
        self._all: range | list[ClientId] = clients if isinstance(clients, range) else list(clients)
        self._at: dict[ClientId, int] = {}
        if not isinstance(clients, range):
            self._at = {client: place for place, client in enumerate(self._all)}

    @classmethod
    def unpacked(cls, packed: NDArray[np.uint8]) -> "Slots":
        """Return the clients that :func:`pack_ids` packed."""
        return cls(_unpacked(packed))

    @classmethod
    def of(cls, roster: Mapping[int, ClientId]) -> "Slots":
        """Return the clients of a roster in its order."""
        return cls(roster.clients if isinstance(roster, Numbered) else roster.values())

    def at(self, clients: Iterable[ClientId]) -> Positions:
        """Return the positions of clients; raises ``KeyError`` for one that is not
        here.
        """
        if isinstance(self._all, range):
            try:
                return np.array(
                    [self._all.index(cast(int, client)) for client in clients], np.int64
                )
            except ValueError as error:
                raise KeyError(*error.args) from None
        return np.array([self._at[client] for client in clients], np.int64)

    def newcomers(self, roster: Mapping[int, ClientId]) -> list[ClientId]:
        """Return the clients of a roster that are not here, in its order."""
        return (
            []
            if self.has_all(roster)
            else [client for client in roster.values() if client not in self]
        )

    def has_all(self, roster: Mapping[int, ClientId]) -> bool:
        """Return whether the roster is the very one whose clients these are, without
        looking at each; False: perhaps not.
        """
        return isinstance(roster, Numbered) and roster.clients == self._all

    def changed(self, gone: Sequence[int], new: Sequence[ClientId]) -> "Slots":
        """Return the clients without those at the positions ``gone``, which close the
        gaps, and with ``new`` ones at the end.
        """
        leaving = set(gone)
        return Slots(
            [client for place, client in enumerate(self._all) if place not in leaving] + list(new)
        )

    def __getitem__(self, place: Any) -> Any:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._all)

    def __contains__(self, client: object) -> bool:
        return client in self._all if isinstance(self._all, range) else client in self._at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return id(self)


def pack_ids(clients: Iterable[ClientId]) -> NDArray[np.uint8]:
    """Return client ids as bytes, for a checkpoint; those of a range by its ends."""
    found = clients._all if isinstance(clients, Slots) else clients
    if isinstance(found, range) and found:
        return np.frombuffer(f"range:{found.start}:{found.stop}".encode(), np.uint8)
    return np.frombuffer("\n".join(f"{type(c).__name__}:{c}" for c in found).encode(), np.uint8)


def unpack_ids(packed: NDArray[np.uint8]) -> list[ClientId]:
    """Return the client ids that :func:`pack_ids` packed."""
    return list(_unpacked(packed))


def _unpacked(packed: NDArray[np.uint8]) -> range | list[ClientId]:
    lines = [line.partition(":") for line in packed.tobytes().decode().split("\n") if line]
    if lines and lines[0][0] == "range":
        start, _, stop = lines[0][2].partition(":")
        return range(int(start), int(stop))
    return [int(name) if kind == "int" else name for kind, _, name in lines]
