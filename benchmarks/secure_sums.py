"""Secure sums: CPU seconds and bytes, derived and measured, and the plain run beside.

    python benchmarks/secure_sums.py cost [--clients 10 100 1000] [--numbers 10000
    1000000] [--neighbours 0] [--gone 0.05]
    python benchmarks/secure_sums.py beside [--set "method=scaffold num-rounds=5"]

cost: n clients with vectors of m numbers and k neighbours each (0: all others), of
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
refused.

beside: five rounds of SCAFFOLD with secure sums, one of seven clients being lost in
every round, each time in another phase; then without them, the same clients being lost
from the sums. Both are printed round by round.
"""

import contextlib
import io
import math
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from safetensors.numpy import load_file

from benchmarks.common import cpu, options, show
from benchmarks.faults import LOSSES, away, lines, with_losses
from fedapps.algorithms.secure.client import Participant
from fedapps.algorithms.secure.fixed_point import to_bytes
from fedapps.algorithms.secure.graph import check_degree, neighbours
from fedapps.algorithms.secure.keys import (
    add_stream,
    agreement_key,
    combine,
    fresh,
    identity,
    new_signing_key,
    pair_key,
    public_bytes,
    signature,
    signed,
    split,
)
from fedapps.algorithms.secure.messages import SEALED, Session, list_digest, part_of
from fedapps.algorithms.secure.state import State
from fedapps.algorithms.secure.wire import packed
from fedapps.commands.parser import main as command
from fedapps.runs import execution
from fedapps.strategies.base.secure_sessions import GONE


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
    people = {
        name: Participant(name, new_signing_key(), State())
        for name in (names if consistency else near)
    }
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
    asked = [offers[name] for name in others]
    spent += cpu(
        lambda: out.append(to_bytes(me.mask(session, names, asked, sealed, b"model", words)))
    )
    survivors = names[: clients - gone]
    proofs = {}
    if consistency:
        text = list_digest(bytes.fromhex(me.state.open[session.id.hex()].context), survivors)
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


def rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per number of clients and length of a vector."""
    for clients, numbers in product(given.clients, given.numbers):
        yield row(clients, numbers, given.neighbours, given.gone)


def ran(out: Path, secure: bool, words: list[str], app: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return rounds and model of a run whose clients have ``app``."""
    execution.load_app = lambda: app  # type: ignore[attr-defined]
    job = (
        "run method=scaffold num-rounds=5 num-clients=7 clients-per-round=0 seed=3 "
        "evaluate-every=1 checkpoint-every=0 --engine inline --workers 1 --out"
    )
    with contextlib.redirect_stdout(io.StringIO()):
        command([*job.split(), str(out), *words, f"secure.on={str(secure).lower()}"])
    return lines(out / "rounds.jsonl"), load_file(out / "model.safetensors")


def beside(words: list[str]) -> Iterator[list[str]]:
    """Yield a row per round of a secure and of a plain run, then what differs."""
    with tempfile.TemporaryDirectory() as folder:
        secure, ours = ran(Path(folder, "secure"), True, words, with_losses())
        lost = with_losses(away([row["clients"] for row in secure]))
        plain, theirs = ran(Path(folder, "plain"), False, words, lost)
        losses = lines(Path(folder, "secure", LOSSES))
    for one, other, (_, phase, client) in zip(secure, plain, losses, strict=True):
        cells = [f"{one['round']}", f"{client} ({phase})", f"{len(one['clients'])}"]
        cells += [f"{each['train']['loss']:.6f}" for each in (other, one)]
        yield cells + [f"{100 * each['evaluate']['accuracy-mean']:.1f}" for each in (other, one)]
    apart = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    sent = [sum(row.get("travelled-up", row["bytes-up"]) for row in run) for run in (secure, plain)]
    print(f"\nlargest difference of a number of the model: {apart:.1e}")
    print(f"bytes up, of the plain run's: {sent[0] / sent[1]:.2f} times")


def main() -> None:
    """Print a table."""
    given = options(
        __doc__,
        {
            "study": ("cost", "beside"),
            "--clients": [10, 100, 1000],
            "--numbers": [10**4, 10**5, 10**6],
            "--neighbours": 0,
            "--gone": 0.05,
            "--set": "",  # settings of the run beside, separated by blanks
        },
    )
    if given.study == "cost":
        columns = ("clients", "numbers", "k / t", "client", "derived", "server", "derived", "up")
        show("CPU seconds of a round", columns, rows(given))
    else:
        columns = ("round", "lost (phase)", "in the sum", "loss, plain", "secure")
        columns += ("accuracy, plain, %", "secure")
        show("Secure and plain sums", columns, beside(given.set.split()))


if __name__ == "__main__":
    main()
