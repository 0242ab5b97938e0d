"""The server's half of a secure sum: it removes the masks from the sum of the vectors
with what the survivors reveal.
"""

from collections.abc import Container, Iterable, Mapping, Sequence, Sized

from fedapps.algorithms.secure.fixed_point import Words
from fedapps.algorithms.secure.keys import (
    SECRET,
    add_stream,
    agreement_key,
    combine,
    pair_key,
    public_bytes,
    self_key,
    signed,
)
from fedapps.algorithms.secure.messages import (
    SEALED,
    Hello,
    Offer,
    Reveal,
    Session,
    commitment,
    part_of,
)


class Unmaskable(RuntimeError):
    """The masks cannot be removed: the round has failed."""


def unmask(
    total: Words,
    session: Session,
    context: bytes,
    offers: Mapping[str, Offer],
    graph: Mapping[str, Sequence[str]],
    survivors: Sequence[str],
    reveals: Mapping[str, Reveal],
) -> None:
    """Remove all masks from ``total`` (n,), the sum of the survivors' masked vectors,
    in place. ``offers``: of all members; ``graph``: the neighbours, sorted. Raises
    ``Unmaskable``.
    """
    alive = set(survivors)

    def shared(name: str) -> bytes:
        """Return a secret of a client from its neighbours' shares."""
        holders, found = graph[name], {}
        t = session.threshold(len(holders))
        for place, holder in enumerate(holders, start=1):
            if holder in reveals and name not in reveals[holder].lacks:
                near = met(graph[holder], offers)
                found[place] = part_of(reveals[holder].shares, near.index(name), SECRET)
        if len(found) < t:
            left = f"{len(found)} of the neighbours of client {name} are left"
            raise Unmaskable(f"{left}, {t} needed")
        return combine(found, t)

    for name in survivors:
        own = reveals[name].own if name in reveals else b""
        if commitment(session, name, own) != offers[name].commitment:
            own = shared(name)
            if commitment(session, name, own) != offers[name].commitment:
                raise Unmaskable(f"the shares of client {name} do not fit together")
        add_stream(total, self_key(own, context), -1)
    for name in sorted(offers.keys() - alive):
        others = met(graph[name], alive)
        if not others:
            continue
        secret = agreement_key(shared(name))
        if public_bytes(secret) != offers[name].public:
            raise Unmaskable(f"the shares of client {name} do not fit together")
        for other in others:
            # what the survivor added is taken away
            sign = -1 if other < name else 1
            add_stream(total, pair_key(secret, offers[other].public, context, name, other), sign)


def met(neighbours: Iterable[str], others: Container[str]) -> list[str]:
    """Return the neighbours that are among others."""
    return [name for name in neighbours if name in others]


def hello_fault(hello: Hello, others: Iterable[Hello]) -> str:
    """Return what is wrong with a client's hello, beside those of others, or "". All
    others would refuse a session with it.
    """
    if not signed(hello.identity, hello.proof, "hello", hello.name, hello.channel):
        return "its hello is not signed by its key"
    for other in others:
        if hello.name == other.name:
            return f"another client is called {hello.name}, too"
        if hello.identity == other.identity:
            return "its key is another client's"
    return ""


def offer_fault(offer: Offer, session: Session, hello: Hello, neighbours: Sized) -> str:
    """Return what is wrong with a client's offer, or ""; ``hello``: the client's."""
    if offer.name != hello.name:
        return "its offer is another client's"
    if not signed(hello.identity, offer.proof, "offer", *offer.about(session, offer.settings)):
        return "its offer is not signed by its key"
    return "" if len(offer.sealed) == SEALED * len(neighbours) else "its offer lacks shares"


def reveal_fault(reveal: Reveal, neighbours: Sized) -> str:
    """Return what is wrong with what a client reveals, or ""; ``neighbours``: those
    that are members.
    """
    return "" if len(reveal.shares) == SECRET * len(neighbours) else "it does not reveal all shares"
