"""Secure SCAFFOLD with a client lost in every round, each time in another phase, on all
engines: the model is that of plain runs of the clients that are left.
"""

import pytest
from safetensors.numpy import load_file

from benchmarks.faults import LOSSES, PHASES, add_losses, away, lines, with_losses
from fedapps.commands.parser import main
from fedapps.deployment import local
from fedapps.deployment.local import Deployment
from fedapps.engines import app_folder
from fedapps.runs import execution
from tests.end_to_end.sites import on
from tests.helpers import assert_arrays, outcome_of, rounds_of, run_inline

ROUNDS = 5
JOB = [
    "method=scaffold", f"num-rounds={ROUNDS}", "train.local-epochs=1", "clients-per-round=0",
    "evaluate-every=0", "checkpoint-every=0", "seed=5", "timeout=60",
]  # fmt: skip


def check(folder, plain, count, monkeypatch):
    """Compare a secure run with the plain run of its survivors."""
    rows = rounds_of(folder)
    assert len(rows) == ROUNDS
    members = [set(row["clients"]) for row in rows]
    losses = lines(folder / LOSSES)
    assert {phase for _, phase, _ in losses} == set(PHASES)
    # one a round, of which those in unmasking are in the sum
    assert len({session for session, *_ in losses}) == ROUNDS
    assert sorted(map(len, members)) == sorted(
        count - (phase in ("offer", "before", "after")) for _, phase, _ in losses
    )
    assert all(row["secure-survivors"] == len(m) for row, m in zip(rows, members, strict=True))
    app = with_losses(away(members))
    monkeypatch.setattr(execution, "load_app", lambda: app)
    run_inline(plain, *JOB, f"num-clients={count}")
    assert [set(row["clients"]) for row in rounds_of(plain)] == members
    one, other = (load_file(place / "model.safetensors") for place in (plain, folder))
    assert_arrays(one, other, rtol=1e-05, atol=1e-06)
    for a, b in zip(rounds_of(plain), rows, strict=True):
        assert b["train"]["loss"] == pytest.approx(a["train"]["loss"], rel=1e-4)


def test_in_process_and_workers_give_the_same_bits(tmp_path, monkeypatch):
    """Ray, too: test_engines."""
    monkeypatch.setattr(execution, "load_app", with_losses)
    for workers in ("1", "2"):
        job = [*JOB, "num-clients=7", "secure.on=true", "--workers", workers]
        run_inline(tmp_path / workers, *job)
    assert outcome_of(tmp_path / "2") == outcome_of(tmp_path / "1")
    check(tmp_path / "1", tmp_path / "plain", 7, monkeypatch)


@pytest.mark.deployment
@pytest.mark.timeout(1800)
def test_supernodes(tmp_path, monkeypatch):
    sites = {
        name: {"partition-id": place, "num-partitions": 5}
        for place, name in enumerate(("bern", "kyiv", "lima", "oslo", "rome"))
    }
    monkeypatch.setattr(local, "copy_app", lambda *given: add_losses(app_folder.copy_app(*given)))
    with Deployment.create(tmp_path / "five", sites, warm=True) as deployment:
        deployment.start()
        words = ["run", *JOB, "num-clients=5", "secure.on=true", *on(deployment, tmp_path / "out")]
        assert main([*map(str, words)]) == 0
    check(tmp_path / "out", tmp_path / "plain", 5, monkeypatch)
