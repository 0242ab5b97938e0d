"""One writer per results folder: a second is refused, a killed one leaves it free."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from fedapps.errors import UserError
from fedapps.records.audit import FILE as AUDIT
from fedapps.records.lock import LAUNCHER, WRITER, FolderLock, FolderLost, Held, holder_of
from fedapps.records.rounds import read_rounds
from fedapps.runs.execution import execute_inline
from fedapps.runs.launch import Launch, settle
from fedapps.runs.prepare import with_defaults
from tests.helpers import ROOT, dying_after, refused, write_file

JOB = {
    "num-clients": 3,
    "clients-per-round": 0,
    "model.name": "logistic",
    "train.local-epochs": 1,
    "num-rounds": 6,
    "checkpoint-every": 2,
    "evaluate-every": 0,
}
HOLD = (
    "import sys, time; from pathlib import Path; from fedapps.records.lock import FolderLock\n"
    "with FolderLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def go(folder, *callbacks, **given):
    settings = {"method": "fedavg", **JOB, "out": str(folder), **given}
    return execute_inline(with_defaults(settings), callbacks)


def test_a_lock_names_its_holder_and_dies_with_it(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout.readline() == b"held\n"
    refused(
        lambda: FolderLock(tmp_path).__enter__(),
        rf"process {process.pid}, `-c {tmp_path}`, run [0-9a-f]{{12}}",
        Held,
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert holder_of(tmp_path / WRITER) == {}
    with FolderLock(tmp_path):
        assert holder_of(tmp_path / WRITER)["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    with FolderLock(tmp_path):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with FolderLock(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_same_command_twice(tmp_path, error_of):
    """The second is refused with one line, whatever it asks for; the first loses
    nothing.
    """
    said = []

    def again(now):
        if now.number == 3:
            command = ("run", "--engine", "inline", "--out", tmp_path)
            said.extend(error_of(*command, *words) for words in ([], ["--overwrite"], ["--resume"]))

    go(tmp_path, again)
    assert len(said) == 3
    assert all(f"another run is writing to it (process {os.getpid()}, " in line for line in said)
    rows = read_rounds(tmp_path)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len({row["run"] for row in rows}) == 1


def test_a_resumed_run_has_its_own_id(tmp_path):
    with dying_after(5), pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    go(tmp_path, resume=True)
    ids = [row["run"] for row in read_rounds(tmp_path)]
    assert ids == [ids[0]] * 4 + [ids[5]] * 2
    assert ids[0] != ids[5]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """What two writers leave behind where there are no locks."""
    go(tmp_path)
    write_file(tmp_path / "checkpoint" / "6" / "run.json", json.dumps({"run": "other", "kept": []}))
    refused(
        lambda: go(tmp_path, resume=True), r"round 6 is of run other.*two runs wrote", UserError
    )


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_removed_while_the_run_writes(tmp_path, replaced):
    """The run ends with one line, and leaves alone what is there instead."""
    folder = tmp_path / "run"

    def remove(now):
        if now.number == 2:
            shutil.rmtree(folder)
            if replaced:
                write_file(folder / WRITER, "{}")
                (folder / "rounds.jsonl").write_text("")

    refused(lambda: go(folder, remove), "was removed or replaced while", FolderLost)
    there = {path.name: path.read_text() for path in folder.glob("*") if path.name != AUDIT}
    assert there == ({WRITER: "{}", "rounds.jsonl": ""} if replaced else {})


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written(tmp_path, error, monkeypatch, error_of):
    real = os.open

    def refuse(path, flags, *mode, **more):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(error, os.strerror(error))
        return real(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    said = error_of("run", "method=fedavg", "--engine", "inline", "--out", tmp_path)
    assert said == f"fedapps: --out {tmp_path}: cannot write to it: {os.strerror(error)}\n"


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert go(tmp_path)["status"] == "completed"
    assert "without locks (No locks available): start only one run" in caplog.text


def test_a_link_or_a_fifo_in_the_place_of_the_lock(tmp_path):
    (tmp_path / WRITER).symlink_to(tmp_path / "elsewhere")
    refused(lambda: FolderLock(tmp_path).__enter__(), "cannot write to it", UserError)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / WRITER).unlink()
    os.mkfifo(tmp_path / WRITER)
    with FolderLock(tmp_path):  # does not hang
        pass


def test_a_lock_that_its_former_holder_removes_while_it_is_taken(tmp_path, monkeypatch):
    """It would be the lock of a file that nobody else sees."""
    real, seen = fcntl.flock, []

    def removed(file, flags):
        if not seen:
            seen.append(file)
            (tmp_path / WRITER).unlink()
        real(file, flags)

    monkeypatch.setattr(fcntl, "flock", removed)
    with FolderLock(tmp_path) as lock:
        lock.check()
        with pytest.raises(Held):
            FolderLock(tmp_path, wait=0).__enter__()


def test_an_orphan_is_stopped_or_waited_for(tmp_path, monkeypatch, capsys):
    """Flower goes on when the command is killed. The next command asks the deployment
    to stop that run by its id, and waits until it lets go of the folder.
    """
    stopped, held = [], []
    with FolderLock(tmp_path, LAUNCHER):  # the command that will be killed
        held.append(FolderLock(tmp_path, WRITER, "77"))
        held[0].__enter__()

    def stop(folder, run):
        stopped.append((folder.name, run))
        held.pop().__exit__()
        return True

    monkeypatch.setattr("fedapps.deployment.site_run.stop_run", stop)
    settle(tmp_path, Launch("deployment"))
    assert stopped == [("deployment", "77")]
    line = f"stopped Flower's run 77, which a killed command left writing to {tmp_path}\n"
    assert capsys.readouterr().err == f"fedapps: {line}"
    settle(tmp_path, Launch("deployment"))  # nobody writes
    with FolderLock(tmp_path, WRITER, "78"):  # of `flwr run`, which nobody killed
        settle(tmp_path, Launch("deployment"))
    with FolderLock(tmp_path, LAUNCHER), FolderLock(tmp_path, WRITER, "79"):
        monkeypatch.setattr("fedapps.runs.launch.ORPHAN_SECONDS", 0.0)
        refused(lambda: settle(tmp_path, Launch("ray")), "run 79", Held)
    assert len(stopped) == 1
