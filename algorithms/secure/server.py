"""The server's half of a secure sum: it removes the masks from the sum of the vectors
with what the survivors reveal.
"""

from collections.abc import Iterable, Mapping, Sequence

from algorithms.secure.fixed_point import Words
from algorithms.secure.graph import local_threshold
from algorithms.secure.keys import agreement_key, public_bytes
from algorithms.secure.masks import add_stream, pair_key, self_key
from algorithms.secure.messages import Offer, Reveal, Session, commitment
from algorithms.secure.sharing import combine


class Unmaskable(RuntimeError):
    """The masks cannot be removed: the round has failed."""


def unmask(
    total: Words,
    session: Session,
    context: bytes,
    offers: Mapping[str, Offer],
    survivors: Sequence[str],
    reveals: Mapping[str, Reveal],
) -> None:
    """Remove all masks from ``total`` (n,), the sum of the survivors' masked vectors,
    in place. ``offers``: of all members. Raises ``Unmaskable``.
    """
    alive = set(survivors)
    for name in survivors:
        own = reveals[name].own if name in reveals else b""
        if commitment(session, name, own) != offers[name].commitment:
            own = _shared(session, offers, name, reveals, kept=True)
            if commitment(session, name, own) != offers[name].commitment:
                raise Unmaskable(f"the shares of client {name} do not fit together")
        add_stream(total, self_key(own, context), -1)
    for name in sorted(offers.keys() - alive):
        others = [other for other in offers[name].holders if other in alive]
        if not others:
            continue
        secret = agreement_key(_shared(session, offers, name, reveals, kept=False))
        if public_bytes(secret) != offers[name].public:
            raise Unmaskable(f"the shares of client {name} do not fit together")
        for other in others:
            # what the survivor added is taken away
            sign = -1 if other < name else 1
            add_stream(total, pair_key(secret, offers[other].public, context, name, other), sign)


def _shared(
    session: Session,
    offers: Mapping[str, Offer],
    name: str,
    reveals: Mapping[str, Reveal],
    kept: bool,
) -> bytes:
    """Return a secret of a client from its neighbours' shares."""
    holders = offers[name].holders
    t = local_threshold(len(holders) + 1, len(holders), session.corrupted)
    found = {}
    for place, holder in enumerate(holders, start=1):
        reveal = reveals.get(holder)
        if reveal and name in reveal.names and (name in reveal.kept) == kept:
            found[place] = reveal.shares[reveal.names.index(name)]
    if len(found) < t:
        raise Unmaskable(f"{len(found)} of the neighbours of client {name} are left, {t} needed")
    return combine(found, t)


def fault(offer: Offer, name: str, neighbours: Iterable[str]) -> str:
    """Return what is wrong with a client's offer, or ""."""
    if offer.name != name or offer.holders != sorted(neighbours):
        return "its offer is for other clients"
    return "" if len(offer.sealed) == len(offer.holders) else "its offer lacks shares"
