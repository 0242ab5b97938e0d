"""Secure sums on real SuperNodes: a site dies after it has made its shares and comes
back, and three sites of which one dies have no sum. Keys are those that the SuperNodes
are registered with.
"""

import contextlib
import threading

import pytest

from fedapps.deployment.local import Deployment
from fedapps.engines.processes import marked
from tests.end_to_end.sites import on, running
from tests.helpers import rounds_of, run_inline, wait_for

NAMES = ["bern", "kyiv", "lima", "oslo", "rome"]
WAIT = 60  # seconds for a phase

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]


def secure_deployment(folder, count):
    """Return a deployment whose sites know each other's registered keys."""
    peers = folder / "peers"
    sites = {
        name: {
            "partition-id": place,
            "num-partitions": count,
            "secure-key": str(folder / "sites" / name / "key"),
            "secure-peers": str(peers),
        }
        for place, name in enumerate(NAMES[:count])
    }
    deployment = Deployment.create(folder, sites, warm=True)
    keys = [(folder / "sites" / name / "key.pub").read_text() for name in sites]
    peers.write_text("".join(f"{place} {key.strip()}\n" for place, key in enumerate(keys)))
    return deployment


def job(count, rounds):
    return [
        "method=scaffold", "secure.on=true", f"num-rounds={rounds}", f"timeout={WAIT}",
        "checkpoint-every=0", "train.local-epochs=1", "evaluate-every=0",
        "clients-per-round=0", "seed=5", f"num-clients={count}",
    ]  # fmt: skip


@contextlib.contextmanager
def after_a_death(folder, count):
    """Let a deployment run until a site that has died has failed; give its process, the
    site, and the row of the round. The rows are on disk.
    """
    out = folder / "out"
    with secure_deployment(folder / "deployment", count) as deployment:
        deployment.start()
        with running(*job(count, 40), *on(deployment, out)) as process:
            # its reply of round 1 has brought the shares for round 2
            wait_for(lambda rows: len(rows) >= 1, process, out, 180)
            deployment.sites["lima"].kill()
            wait_for(lambda rows: any(r["failures"] for r in rows), process, out, 5 * WAIT)
            bad = next(row for row in rounds_of(out) if row["failures"])
            yield process, deployment.sites["lima"], bad
    assert marked(deployment.mark) == []


def test_a_site_dies_after_its_shares_and_comes_back(tmp_path):
    run_inline(tmp_path / "inline", *job(5, 1))
    with after_a_death(tmp_path, 5) as (process, lima, bad):
        back = threading.Thread(target=lima.start)
        back.start()
        again = lambda rows: any(len(r["clients"]) == 5 for r in rows if r["round"] > bad["round"])
        wait_for(again, process, tmp_path / "out", 300)
        back.join(10)
    first = rounds_of(tmp_path / "out")[0]
    # hello, offer, sign, reveal
    assert (first["secure-survivors"], first["secure-phases"]) == (5, 4)
    assert (bad["clients"], bad["secure-survivors"]) == ([0, 1, 3, 4], 4)
    (inline,) = rounds_of(tmp_path / "inline")
    assert first["train"]["loss"] == pytest.approx(inline["train"]["loss"], rel=1e-3)


def test_three_sites_of_which_one_dies_have_no_sum(tmp_path):
    with after_a_death(tmp_path, 3) as (_, _, bad):
        assert bad["clients"] == []
        reasons = {failure["client"]: failure["reason"] for failure in bad["failures"]}
        assert "2 of 3 clients are left, 3 needed" in reasons[0]
        assert "secure-survivors" not in bad
