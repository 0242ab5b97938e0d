"""What clients and server send each other, as dataclasses whose fields are text, bytes,
whole numbers and lists of these: they fit into a ``ConfigRecord`` as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from algorithms.secure.keys import digest


@dataclass(frozen=True)
class Fields:
    """Base of these dataclasses."""

    def to_fields(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> Self:
        """Return the message with these fields. Raises ``ValueError`` for missing ones
        and for other types.
        """
        found: dict[str, Any] = {}
        for part in fields(cls):
            kind, item = KINDS[str(part.type)]
            value = values.get(part.name)
            listed: list[Any] = value if isinstance(value, list) else []
            if type(value) is not kind or any(type(one) is not item for one in listed):
                raise ValueError(f"{cls.__name__}: {part.name} must be {part.type}")
            found[part.name] = list(listed) if item else value
        return cls(**found)


KINDS: dict[str, tuple[type, type | None]] = {
    str(str): (str, None),
    str(bytes): (bytes, None),
    str(int): (int, None),
    str(bool): (bool, None),
    str(list[str]): (list, str),
    str(list[bytes]): (list, bytes),
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
    may be corrupted, whether the list of survivors is to be signed, and by how many
    clients two cohorts must differ unless they are equal.
    """

    tag: bytes
    number: int
    corrupted: int
    consistency: bool
    min_change: int

    @property
    def id(self) -> bytes:
        """All of it: keys and signatures are for one session."""
        values = (self.tag, self.number, self.corrupted, int(self.consistency), self.min_change)
        return digest("session", *values)


@dataclass(frozen=True)
class Offer(Fields):
    """A client's part in a session: its key for masks, a commitment to the secret of
    its own mask, both signed, and the sealed shares for its neighbours.
    """

    name: str
    public: bytes
    commitment: bytes
    proof: bytes
    holders: list[str]
    sealed: list[bytes]


@dataclass(frozen=True)
class Reveal(Fields):
    """What a client gives for the unmasking: the secret of its own mask, and one share
    of each of its neighbours: of the own mask's secret for one that survived
    (``kept``), of the key for masks for one that is gone.
    """

    own: bytes
    names: list[str]
    kept: list[str]
    shares: list[bytes]


def commitment(session: Session, name: str, secret: bytes) -> bytes:
    """Return what binds a client to the secret of its own mask."""
    return digest("commitment", session.id, name, secret)


def list_digest(context: bytes, survivors: list[str]) -> bytes:
    """Return the digest of a list of survivors in a context, whatever its order."""
    return digest("survivors", context, *sorted(survivors))


def context_digest(session: Session, members: list[str], content: bytes) -> bytes:
    """Return what all members must agree on, or their masks do not cancel: the session,
    the members, and ``content``, the digest of all that they were sent.

    Source of the latter: Pasquini, Francati, Ateniese, "Eluding Secure Aggregation in
    Federated Learning via Model Inconsistency", CCS 2022, doi 10.1145/3548606.3560557.
    """
    return digest("context", session.id, content, *sorted(members))
