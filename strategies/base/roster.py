"""Who is connected: node -> client id, sorted by id, and grids that know it without
asking.

A grid that makes its clients itself (a simulation) offers ``known_clients``. Then no
client has to be asked, and a million clients numbered from 0 take no memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

ClientId = int | str


class Numbered(Mapping[int, ClientId]):
    """The clients 0 to ``count`` - 1, at the nodes ``first`` to ``first + count -
    1``.
    """

    def __init__(self, first: int, count: int) -> None:
        self.nodes, self.clients = range(first, first + count), range(count)

    def __getitem__(self, node: int) -> ClientId:
        if node not in self.nodes:
            raise KeyError(node)
        return int(node) - self.nodes.start

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True)
class Travel:
    """The traffic of one phase: messages to nodes, and the bytes of their contents and
    of the replies.

    ``summed``: only sums of the clients' models came back, so no client can be skipped
    any more. ``facts``: what else the record of a round repeats, by name.
    """

    messages: int = 0
    down: int = 0
    up: int = 0
    summed: bool = False
    facts: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class KnowingClients(Protocol):
    """A grid that knows its clients."""

    def known_clients(self) -> Numbered | None:
        """Return the connected clients; ``None``: they have to be asked after all."""


@runtime_checkable
class Packing(Protocol):
    """A grid whose messages to nodes are not one for each client."""

    travel: Travel


def order(client: ClientId) -> tuple[bool, ClientId]:
    """Return the key by which client ids are sorted: numbers, then names."""
    return isinstance(client, str), client


def called(client: ClientId, names: Sequence[str]) -> ClientId:
    """Return what people call a client: its name among those of clients 0, 1, ..., or
    its id if it has none.
    """
    return names[client] if isinstance(client, int) and 0 <= client < len(names) else client
