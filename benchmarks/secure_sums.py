"""Secure sums beside the plain round: CPU seconds and bytes, derived and measured.

    python benchmarks/secure_sums.py [--clients 10 100 1000] [--numbers 10000 1000000]
                                     [--neighbours 0] [--gone 0.05] [--ciphers]

Per row: n clients with vectors of m numbers and k neighbours each (0: all others), of
which a share ``--gone`` made shares and sent no vector. ``client``: CPU seconds of one
client in one round: offer, mask, sign and reveal, measured for one client. ``server``:
CPU seconds to remove the masks, measured up to 20 of the masks and 5 of the secrets and
scaled to all of them if there are more (``~``). ``derived``: from the time of a stream
of m words, of a key agreement, of a signature's check and of a secret's sharing, each
measured alone; with g = gone n:

    client    (k + 1) streams + 2 k agreements + (k + n [signatures]) checks + 2 splits
    server    (n - g) + g k (1 - g/n) streams, as many agreements, g combinations

``up``: bytes that a client sends, by the size of 4 m bytes that it sends in the clear.
With ``--neighbours`` lists of survivors are not signed, and too few of them are
refused. ``--ciphers`` compares the generators of the masks.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from rich import box
from rich.console import Console
from rich.table import Table

from fedapps.algorithms.secure.client import Participant
from fedapps.algorithms.secure.fixed_point import to_bytes
from fedapps.algorithms.secure.graph import check_degree, neighbours
from fedapps.algorithms.secure.keys import (
    agreement_key,
    fresh,
    identity,
    new_signing_key,
    public_bytes,
    signature,
    signed,
)
from fedapps.algorithms.secure.masks import add_stream, pair_key
from fedapps.algorithms.secure.messages import SEALED, Session, list_digest, part_of
from fedapps.algorithms.secure.sharing import combine, split
from fedapps.algorithms.secure.state import State
from fedapps.algorithms.secure.wire import packed
from fedapps.strategies.base.secure_sessions import GONE


def cpu(work: Callable[[], object], times: int = 1) -> float:
    """Return the CPU seconds of ``work``, the least of ``times``."""
    least = math.inf
    for _ in range(times):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return least


def prices(numbers: int, degree: int, threshold: int) -> dict[str, float]:
    """Return the CPU seconds of the parts."""
    words, key, other = np.zeros(numbers, np.uint64), agreement_key(fresh()), fresh()
    public, signing = public_bytes(agreement_key(other)), new_signing_key()
    who, proof = identity(signing), signature(signing, "offer", b"x")
    shares = dict(enumerate(split(other, threshold, degree), start=1))
    return {
        "stream": cpu(lambda: add_stream(words, bytes(32), 1), 3),
        "agreement": cpu(lambda: pair_key(key, public, b""), 3),
        "check": cpu(lambda: signed(who, proof, "offer", b"x"), 3),
        "split": cpu(lambda: split(other, threshold, degree), 3),
        "combine": cpu(lambda: combine(shares, threshold), 2),
    }


def row(clients: int, numbers: int, degree: int, gone_share: float) -> list[str]:
    """Return a row of the table."""
    k = min(degree or clients - 1, clients - 1)
    consistency, gone = not degree, math.ceil(gone_share * clients)
    session = Session(bytes(16), 1, 0, consistency, 0, clients * bool(degree))
    check_degree(clients, k, 0, math.ceil(GONE * clients))
    t = session.threshold(k)
    price = prices(numbers, k, t)
    streams = (clients - gone) + gone * k * (1 - gone / clients)
    derived = {
        "client": (k + 1) * price["stream"]
        + 2 * k * price["agreement"]
        + (k + clients * consistency) * price["check"]
        + 2 * price["split"],
        "server": streams * price["stream"]
        + gone * k * price["agreement"]
        + gone * price["combine"],
    }
    # one client in full; of the others only the steps that it needs
    names = [f"{place:04}" for place in range(clients)]
    graph = neighbours(names, degree)
    near = [names[0], *graph[names[0]]]
    everyone = names if consistency else near
    people = {name: Participant(name, new_signing_key(), State()) for name in everyone}
    hellos = {name: person.hello() for name, person in people.items()}
    me, others = people[names[0]], graph[names[0]]
    # its neighbours offer to it and to as many strangers as they have neighbours
    offers = {}
    for name in others:
        circle = ([names[0]] + [one for one in near if one not in (name, names[0])])[:k]
        offers[name] = people[name].offer(session, [hellos[one] for one in circle])
    spent = cpu(lambda: offers.update({names[0]: me.offer(session, [hellos[n] for n in others])}))
    # of its neighbours it is the first
    sealed = {n: part_of(offers[n].sealed, 0, SEALED) for n in others}
    words, out = np.zeros(numbers, np.uint64), []
    members = names
    asked = [offers[name] for name in others]
    spent += cpu(
        lambda: out.append(to_bytes(me.mask(session, members, asked, sealed, b"model", words)))
    )
    survivors = names[: clients - gone]
    context = bytes.fromhex(me.state.open[session.id.hex()].context)
    proofs = {}
    if consistency:
        text = list_digest(context, survivors)
        spent += cpu(lambda: me.sign(session, survivors))
        proofs = {n: signature(people[n].key, "survivors", text) for n in survivors}
    given = []
    spent += cpu(lambda: given.append(me.reveal(session, survivors, proofs)))
    # the server: some masks and secrets, scaled
    some, few = min(20, math.ceil(streams)), min(5, gone)
    total = np.zeros(numbers, np.uint64)
    key, public = agreement_key(fresh()), public_bytes(agreement_key(fresh()))
    server = cpu(lambda: [add_stream(total, pair_key(key, public, b"x"), -1) for _ in range(some)])
    server *= streams / some
    shares = dict(enumerate(split(fresh(), t, k), start=1))
    server += cpu(lambda: [combine(shares, t) for _ in range(few)]) * gone / max(1, few)
    sent = len(out[0]) + sum(
        sum(map(len, packed(part.to_fields()).values())) for part in (offers[names[0]], given[0])
    )
    return [
        f"{clients:,}",
        f"{numbers:,}",
        f"{k} / {t}",
        f"{spent:.3f}",
        f"{derived['client']:.3f}",
        f"~{server:.2f}",
        f"{derived['server']:.2f}",
        f"{sent / (4 * numbers):.2f}",
    ]


def ciphers() -> None:
    """Print the seconds of a stream of a million words, for three generators."""
    zeros, room = bytes(8 * 10**6), bytearray(8 * 10**6 + 16)
    for name, cipher in {
        "AES-256-CTR": Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))),
        "AES-128-CTR": Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))),
        "ChaCha20": Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), None),
    }.items():
        spent = cpu(lambda cipher=cipher: cipher.encryptor().update_into(zeros, room), 20)
        print(f"{name:12} {1000 * spent:.2f} ms for 8 MB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--numbers", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--neighbours", type=int, default=0)
    parser.add_argument("--gone", type=float, default=0.05)
    parser.add_argument("--ciphers", action="store_true")
    given = parser.parse_args()
    if given.ciphers:
        ciphers()
        return
    table = Table(box=box.SIMPLE)
    for name in ("clients", "numbers", "k / t", "client", "derived", "server", "derived", "up"):
        table.add_column(name, justify="right")
    for clients in given.clients:
        for numbers in given.numbers:
            table.add_row(*row(clients, numbers, given.neighbours, given.gone))
    Console().print(table)


if __name__ == "__main__":
    main()
