"""Runs of a pool: finished ones are kept, broken ones continue, failed ones are
reported with the others.
"""

import os
import re
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from fedapps.lab.sweeps.pool import DIED, PlannedRun, Pool, finished, run_all, run_one
from fedapps.records.lock import WRITER, FolderLock
from fedapps.records.rounds import status_of
from tests.helpers import ROOT, dying_after, outcome_of, write_file

LASSO: dict[str, Any] = {
    "method": "fedfw",
    "task": "lasso",
    "num-clients": 3,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 2,
}


def job(folder: Path, rounds: int = 3, **more: Any) -> PlannedRun:
    return PlannedRun({**LASSO, "num-rounds": rounds, **more}, folder)


def test_a_broken_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    whole, broken = (job(tmp_path / name, 6) for name in ("whole", "broken"))
    run_one(whole)
    with dying_after(5), pytest.raises(KeyboardInterrupt):
        run_one(broken)
    assert not finished(broken.folder)
    assert run_one(broken)["rounds-completed"] == 6
    assert outcome_of(whole.folder) == outcome_of(broken.folder)


def test_without_runs_no_process_is_started() -> None:
    assert list(run_all([], 1)) == []


@pytest.mark.slow
def test_a_pool_keeps_its_process_and_replaces_one_that_was_killed(tmp_path: Path) -> None:
    before = set(active_children())
    with Pool(1) as pool:
        # a run that fails does not stop the other
        runs = [job(tmp_path / "bad", **{"lasso.sparsity": 0}), job(tmp_path / "a")]
        bad, good = pool(runs)
        assert re.match("bad: failed: .*sparsity", str(bad))
        assert str(good).startswith("a: 3 rounds in")
        assert [finished(run.folder) for run in runs] == [False, True]
        (first,) = set(active_children()) - before
        assert not any(ended.error for ended in pool([job(tmp_path / "c")]))
        assert set(active_children()) - before == {first}
        first.kill()
        first.join()
        # what was under way is lost, or nothing was
        assert {ended.error for ended in pool([job(tmp_path / "d")])} <= {"", DIED}
        assert not any(ended.error for ended in pool([job(tmp_path / "e")]))
    assert set(active_children()) == before


NET = """
import os
import time
from pathlib import Path
from torch import nn

def net():
    \"\"\"Note this process and its GPUs, and wait for the other processes.\"\"\"
    here = Path(__file__).parent
    (here / str(os.getpid())).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    deadline = time.monotonic() + 100
    while len(list(here.glob("[0-9]*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.slow
def test_each_process_sees_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes share two GPUs two to one; in their parent nothing changes."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    folder = tmp_path / "net"
    write_file(folder / "three_nets.py", NET)
    monkeypatch.syspath_prepend(folder)
    config = {"num-rounds": 1, "num-clients": 2, "device": "cpu", "model.name": "three_nets:net"}
    runs = [PlannedRun({**config, "seed": i}, tmp_path / f"{i}") for i in range(3)]
    assert [ended.error for ended in run_all(runs, 3, ["4", "7"])] == [""] * 3
    assert sorted(path.read_text() for path in folder.glob("[0-9]*")) == ["4", "4", "7"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


KILLED = f"""
import sys
from pathlib import Path
from fedapps.lab.sweeps.pool import PlannedRun, run_all

LASSO = {LASSO}
runs = [PlannedRun({{**LASSO, "num-rounds": n}}, Path(p)) for p, n in zip(sys.argv[1:], (3, 10**7))]
runs = run_all(runs, 1)
next(runs)
print("begun", flush=True)
next(runs)
"""


@pytest.mark.slow
def test_the_processes_of_a_pool_end_when_its_program_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(tmp_path / "b")]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert program.stdout is not None
    program.stdout.readline()
    time.sleep(1)  # the second run is under way
    program.kill()
    program.wait()
    with FolderLock(tmp_path / "b", WRITER, wait=30):  # its writer has ended
        pass
    assert status_of(tmp_path / "b") != "completed"
