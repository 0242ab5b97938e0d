"""What clients and server send each other, as dataclasses whose fields are text, bytes,
numbers and lists of these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from fedapps.algorithms.secure.graph import local_threshold
from fedapps.algorithms.secure.keys import SECRET, TAG, digest


@dataclass(frozen=True)
class Fields:
    """Base of these dataclasses."""

    def to_fields(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_fields(cls, values: Any) -> Self:
        """Return the message with these fields. Raises ``ValueError`` for missing ones
        and for other types.
        """
        found: dict[str, Any] = {}
        for part in fields(cls):
            kind = KINDS[str(part.type)]
            try:
                found[part.name] = kind(values[part.name])
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"{cls.__name__}: {part.name} must be {part.type}") from None
        return cls(**found)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return check


def _list(item: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [item(one) for one in _exactly(list)(values)]


#: How the type of a field is read.
KINDS: dict[str, Callable[[Any], Any]] = {
    **{str(kind): _exactly(kind) for kind in (str, int, bool, float, bytes)},
    str(list[str]): _list(_exactly(str)),
}


@dataclass(frozen=True)
class Hello(Fields):
    """Who a client is: its name, its key for signatures (as OpenSSH writes it) and for
    shares (X25519), and the signature of name and key for shares.
    """

    name: str
    identity: bytes
    channel: bytes
    proof: bytes


@dataclass(frozen=True)
class Session(Fields):
    """One sum: the random tag of the run, the number of the sum in it, how many clients
    may be corrupted, whether the list of survivors is to be signed, by how many clients
    two cohorts must differ unless they are equal, and of how many clients the
    neighbours are drawn (0: all others are neighbours).
    """

    tag: bytes
    number: int
    corrupted: int
    consistency: bool
    min_change: int
    clients: int = 0

    @property
    def id(self) -> bytes:
        """All of it: keys and signatures are for one session."""
        return digest("session", *(getattr(self, part.name) for part in fields(self)))

    def threshold(self, holders: int) -> int:
        """Return how many shares give a secret that ``holders`` have shares of. Where
        the server may lie, no draw limits how many of them are corrupted.
        """
        clients = 0 if self.consistency else self.clients
        return local_threshold(max(clients, holders + 1), holders, self.corrupted)


@dataclass(frozen=True)
class Offer(Fields):
    """A client's part in a session: its key for masks, a commitment to the secret of
    its own mask, both signed together with the digest of the run's settings, and the
    sealed shares for its neighbours, in the order of their names.
    """

    name: str
    public: bytes
    commitment: bytes
    settings: bytes
    proof: bytes
    sealed: bytes = b""

    def about(self, session: Session, settings: bytes) -> tuple[bytes | str, ...]:
        """Return what the client signs, for a run with these settings."""
        return session.id, settings, self.name, self.public, self.commitment

    def sealed_for(self, holder: str, neighbours: Sequence[str]) -> bytes:
        """Return the sealed shares for one of its neighbours, which are sorted."""
        return part_of(self.sealed, neighbours.index(holder), SEALED)


@dataclass(frozen=True)
class Reveal(Fields):
    """What a client gives for the unmasking: the secret of its own mask, and one share
    of each of its neighbours that are members, in the order of their names: of the own
    mask's secret for one that survived, of the key for masks for one that is gone.
    ``lacks``: the neighbours whose share it could not open, with zeros in its place.
    """

    own: bytes
    shares: bytes
    lacks: list[str]


#: Bytes of both sealed shares of a client for a neighbour.
SEALED = 2 * SECRET + TAG


def part_of(data: bytes, place: int, size: int) -> bytes:
    """Return a part of bytes that consist of parts of one size."""
    return data[place * size : (place + 1) * size]


def commitment(session: Session, name: str, secret: bytes) -> bytes:
    """Return what binds a client to the secret of its own mask."""
    return digest("commitment", session.id, name, secret)


def weighted_digest(content: bytes, weights: Mapping[str, float]) -> bytes:
    """Return the digest of what the members are sent, with the weights that were
    decided, if any were.
    """
    if not weights:
        return content
    return digest("weights", content, *(f"{n} {weights[n]!r}" for n in sorted(weights)))


def list_digest(context: bytes, survivors: Sequence[str]) -> bytes:
    """Return the digest of a list of survivors in a context, whatever its order."""
    return digest("survivors", context, *sorted(survivors))


def context_digest(session: Session, members: list[str], content: bytes) -> bytes:
    """Return what all members must agree on, or their masks do not cancel: the session,
    the members, and ``content``, the digest of all that they were sent.

    Source of the latter: Pasquini, Francati, Ateniese, "Eluding Secure Aggregation in
    Federated Learning via Model Inconsistency", CCS 2022, doi 10.1145/3548606.3560557.
    """
    return digest("context", session.id, content, *sorted(members))
