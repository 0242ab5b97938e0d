"""Runs of the command and of sweeps with worker processes: a killed worker, Ctrl-C, and
the cores that the runs of a sweep share.
"""

import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedapps.engines import workers
from fedapps.engines.processes import Cores
from fedapps.lab.sweeps import pool
from fedapps.runs import execution
from tests.helpers import command, eventually, lacking, outcome_of, rounds_of

JOB = {
    "method": "scaffold",
    "num-clients": 6,
    "clients-per-round": 4,
    "num-rounds": 2,
    "train.local-epochs": 1,
}


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_killed_worker_costs_replies_and_ctrl_c_leaves_no_process(tmp_path):
    out = tmp_path / "r"
    settings = ["num-rounds=100000", "evaluate-every=0", "train.compile=off", "num-clients=8"]
    process = command("--engine", "inline", "--workers", "2", *settings, "--out", out)
    eventually(lambda: len(rounds_of(out)) > 1, 200)

    def failed():
        # it may have been between two clients, which costs nothing
        os.kill(children(process.pid)[0], signal.SIGKILL)
        at = len(rounds_of(out))
        eventually(lambda: len(rounds_of(out)) > at + 1, 200)
        return [row for row in rounds_of(out) if row["failures"]]

    row = eventually(failed, 200)[0]
    assert "worker process of this client was killed by SIGKILL" in row["failures"][0]["reason"]
    assert 0 < len(row["failures"]) < 5
    assert not rounds_of(out)[-1]["failures"]
    left = children(process.pid)
    assert len(left) == 2
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert lacking(said, "continue with: fedapps run --resume", "Traceback") == ["Traceback"]
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
    shutil.rmtree(out)


def test_a_run_of_a_sweep_uses_the_cores_that_others_left(tmp_path, monkeypatch):
    """Its numbers are the same. It holds one core, and gives back all others after
    each phase.
    """
    pool.run_one(pool.PlannedRun(JOB, tmp_path / "alone"))
    used = []
    run_in = workers.WorkerGrid._run_in

    def counted(self, workers_used, asked):
        used.append((len(workers_used), shared.free.value))
        return run_in(self, workers_used, asked)

    monkeypatch.setattr(workers.WorkerGrid, "_run_in", counted)
    monkeypatch.setattr(workers, "usual_method", lambda: "fork")
    monkeypatch.setattr(execution, "pays", lambda *_: True)
    shared = Cores(4, multiprocessing.Value("i", 3))
    monkeypatch.setattr(pool, "SHARED", [shared])
    pool.run_one(pool.PlannedRun(JOB, tmp_path / "together"))
    assert outcome_of(tmp_path / "together") == outcome_of(tmp_path / "alone")
    assert set(used) == {(3, 0)}
    assert shared.free.value == 3


def test_workers_are_not_for_a_gpu():
    task = SimpleNamespace(device=torch.device("cuda"))
    assert execution.number_of_workers(None, task, None) == 1
