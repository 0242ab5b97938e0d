"""Who masks with whom, and how many must answer.

With all others as neighbours nothing is left to chance. With k of n - 1 neighbours, at
random places of a ring, a client's cost grows with k instead of n. Then chance decides
whether too many neighbours of a client collude, whether too many are gone, and whether
the honest clients that stay are connected; :func:`risks` bounds all three.

Source: Bell, Bonawitz, Gascon, Lepoint, Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, doi 10.1145/3372297.3417885, section 3. The tails
here are those of the draw itself, over all clients.
"""

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence

#: Smallest sum that may be revealed.
LEAST = 3
#: Most that may go wrong: privacy, and the success of a round.
PRIVACY, SUCCESS = 2.0**-40, 2.0**-20


def threshold(count: int, corrupted: int) -> int:
    """Return the smallest t > (count + corrupted) / 2: no two groups of t share only
    corrupted members, so nobody gets both kinds of shares, or two lists signed.
    """
    return (count + corrupted) // 2 + 1


def least_survivors(members: int, corrupted: int) -> int:
    """Return how many clients a sum must have."""
    return max(LEAST, threshold(members, corrupted))


def shares_fault(weights: Mapping[str, float], names: Iterable[str], corrupted: int) -> str:
    """Return why a sum of the clients ``names`` with decided weights would show one of
    them, or "": one weighs more than all others without the heaviest ``corrupted``.
    """
    own = sorted((weights.get(name, math.nan) for name in names), reverse=True)
    rest = sum(own[1 + corrupted :])
    if not all(weight >= 0 for weight in own) or not 0 < own[0] <= (1 + 1e-9) * rest:
        return f"a client weighs {own[0]:.3g}, and the others {rest:.3g}: the sum would show it"
    return ""


def neighbours(names: Sequence[str], degree: int = 0) -> dict[str, list[str]]:
    """Return the neighbours of every client, sorted: all others (``degree`` 0, or as
    many as there are others), or ``degree``, an even number, on a random ring.
    """
    if not 0 < degree < len(names) - 1:
        return {name: sorted(other for other in names if other != name) for name in names}
    if degree % 2:
        raise ValueError(f"neighbours = {degree}: must be an even number")
    ring = list(names)
    secrets.SystemRandom().shuffle(ring)
    steps = [step for half in range(1, degree // 2 + 1) for step in (half, -half)]
    return {
        name: sorted(ring[(place + step) % len(ring)] for step in steps)
        for place, name in enumerate(ring)
    }


def tail(count: int, marked: int, drawn: int, least: int) -> float:
    """Return the chance that at least ``least`` of ``drawn`` out of ``count`` are among
    the ``marked`` ones.
    """
    ways = sum(
        math.comb(marked, hit) * math.comb(count - marked, drawn - hit)
        for hit in range(max(least, 0), min(drawn, marked) + 1)
    )
    return ways / math.comb(count, drawn)


def risks(clients: int, degree: int, corrupted: int, gone: int) -> tuple[float, float]:
    """Return bounds on the chance that a curious server and ``corrupted`` clients see
    more than the sum, and that a round fails though only ``gone`` clients are gone.
    """
    others = clients - 1
    if not 0 < degree < others:
        return 0.0, 0.0
    t = local_threshold(clients, degree, corrupted)
    away = min(clients, corrupted + gone)
    # a ring falls apart only where degree / 2 in a row are missing
    apart = clients * (away / clients) ** (degree // 2)
    seen = clients * tail(others, corrupted, degree, t) + apart
    failed = clients * tail(others, gone, degree, degree - t + 1)
    return min(1.0, seen), min(1.0, failed)


def local_threshold(clients: int, degree: int, corrupted: int) -> int:
    """Return the threshold of a client's neighbours, of whom an average share is
    corrupted.
    """
    degree = min(degree or clients - 1, clients - 1)
    return max(2, threshold(degree, math.ceil(corrupted * degree / max(1, clients - 1))))


def check_degree(clients: int, degree: int, corrupted: int, gone: int) -> None:
    """Raise ``ValueError`` if ``degree`` leaves more to chance than it may."""

    def fits(degree: int) -> bool:
        seen, failed = risks(clients, degree, corrupted, gone)
        return seen <= PRIVACY and failed <= SUCCESS

    if fits(degree):
        return
    seen, failed = risks(clients, degree, corrupted, gone)
    more = next(filter(fits, range(degree + 2, clients, 2)), 0)
    raise ValueError(
        f"neighbours = {degree}: with {clients} clients, {corrupted} corrupted and {gone} gone, "
        f"more than the sum is seen with chance {seen:.1g} (at most {PRIVACY:.1g}) and a round "
        f"fails with {failed:.1g} (at most {SUCCESS:.1g}): choose {more or '0, all others'}"
    )
