"""A full disk, for a while or at a bad moment, does not end the run, and neither
existing files nor records are lost.
"""

import contextlib
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedapps.commands.parser import main
from fedapps.engines.flower import Following, SubmittedRun
from fedapps.errors import UserError
from fedapps.records.audit import FILE as AUDIT
from fedapps.records.checkpoint import Checkpoints
from fedapps.records.lock import LAUNCHER, WRITER, FolderLock, FolderLost, Held, holder_of
from fedapps.records.rounds import read_rounds
from fedapps.runs.execution import execute_inline
from fedapps.runs.launch import Launch, settle
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import FedAvg
from fedapps.strategies.base.messages import to_record
from fedapps.toml_text import read_toml
from tests.helpers import ROOT, dying_after, lacking, outcome_of, refused, write_file

JOB = {
    "num-clients": 3,
    "clients-per-round": 0,
    "model.name": "logistic",
    "train.local-epochs": 1,
    "num-rounds": 12,
}


@contextlib.contextmanager
def full(size):
    """Let no file grow beyond ``size`` bytes (EFBIG, for ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def go(folder, *callbacks, **given):
    given = {key.replace("_", "-"): value for key, value in given.items()}
    return execute_inline(with_defaults({**JOB, "out": str(folder), **given}), callbacks)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 5, 100])
def test_rounds_that_could_not_be_recorded_are_recorded_when_there_is_room(room, tmp_path):
    """From the end of round 3 to the end of round 5, only ``room`` bytes of a line fit
    on the disk. Tables and weights wait as well.
    """
    given = {"method": "aaggff-d", "evaluate_every": 2, "checkpoint_every": 1}
    with contextlib.ExitStack() as stack:

        def fill(now):
            if now.number == 3:
                stack.enter_context(
                    full((tmp_path / "run" / "rounds.jsonl").stat().st_size + room if room else 0)
                )
            elif now.number == 5:
                assert len(read_rounds(tmp_path / "run")) == 3
                stack.close()

        assert go(tmp_path / "run", fill, **given)["status"] == "completed"
    go(tmp_path / "clean", **given)
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "clean")
    assert len(read_rounds(tmp_path / "run")) == 12
    settings = [tmp_path / name / "settings.toml" for name in ("run", "clean")]
    assert settings[0].read_bytes() == settings[1].read_bytes()
    assert not list((tmp_path / "run").glob("*.partial"))


def test_no_checkpoint_is_ahead_of_the_record(tmp_path):
    """A small checkpoint may fit on the disk when a long record does not. If the run
    then dies, the resumed run still has every round.
    """
    given = {"method": "fedavg", "evaluate_every": 0, "checkpoint_every": 1, "num_rounds": 24}
    with contextlib.ExitStack() as stack:

        def fill_and_die(now):
            if now.number == 20:
                size = (tmp_path / "rounds.jsonl").stat().st_size
                assert (
                    size
                    > (tmp_path / "checkpoint" / "20" / "model.safetensors").stat().st_size + 100
                )
                stack.enter_context(full(size))
            if now.number == 21:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, fill_and_die, **given)
    go(tmp_path, resume=True, **given)
    assert [row["round"] for row in read_rounds(tmp_path)] == list(range(1, 25))


def test_resuming_on_a_full_disk_keeps_the_existing_files(tmp_path, capsys):
    def run(*arguments):
        return main(["run", "--out", str(tmp_path), *arguments])

    job = [f"{key}={value}" for key, value in (JOB | {"num-rounds": 3}).items()]
    assert (
        run("method=aaggff-d", "evaluate-every=1", "checkpoint-every=2", "--engine", "inline", *job)
        == 0
    )
    before = {
        name: (tmp_path / name).read_bytes()
        for name in ("settings.toml", "rounds.jsonl", "weights.csv", "clients.csv")
    }
    capsys.readouterr()
    with full(0):
        assert run("--resume", "--engine", "inline") == 2
        said = capsys.readouterr().err
        assert said == f"fedapps: --out {tmp_path}: cannot write to it: File too large\n"
        stored = {
            key: value
            for key, value in read_toml(tmp_path / "settings.toml").items()
            if "versions" not in key
        }
        # as if the disk had become full a moment later
        refused(lambda: go(tmp_path, resume=True, **stored), "File too large", OSError)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert run("--resume", "--engine", "inline") == 0
    assert [row["round"] for row in read_rounds(tmp_path)] == [1, 2, 3]


def test_a_run_that_cannot_write_its_model_has_not_completed(tmp_path):
    with contextlib.ExitStack() as stack:

        def fill(now):
            if now.number == 12:
                stack.enter_context(full(500))

        refused(
            lambda: go(tmp_path, fill, method="fedavg", evaluate_every=0, checkpoint_every=1),
            "File too large",
            OSError,
        )
    assert not (tmp_path / "model.safetensors").exists()  # instead of a part of it
    go(tmp_path, resume=True, method="fedavg", evaluate_every=0, checkpoint_every=1)
    assert (tmp_path / "model.safetensors").exists()


def test_without_room_for_model_and_report_the_command_ends_with_one_line(tmp_path, capsys):
    job = [f"{key}={value}" for key, value in (JOB | {"model.name": "mlp"}).items()]
    job += ["num-rounds=4", "evaluate-every=0", "checkpoint-every=2"]
    with full(15_000):
        assert main(["run", *job, "--engine", "inline", "--out", str(tmp_path / "r")]) == 1
    assert (tmp_path / "r" / "run.log").read_text().count("The run continues") == 2
    assert len(read_rounds(tmp_path / "r")) == 4
    said = capsys.readouterr().err
    assert lacking(said, "cannot write the report", "Traceback") == ["Traceback"]


def test_a_log_without_room_does_not_end_the_command(tmp_path):
    """The engine runs elsewhere and its lines still arrive. If the command ended, the
    run would continue with nobody following it.
    """

    class Link:
        flwr = "flwr"

        def spawn(self, command, stdout):
            return subprocess.Popen(["printf", r"one\ntwo\n"], stdout=stdout)

        def check_alive(self):
            pass

        tick = check_alive

    (tmp_path / "run.log").symlink_to("/dev/full")
    run = SubmittedRun(Link(), Following(tmp_path / "run.log"))
    run.run_id = "1"
    run.follow()
    assert run.lines == ["one", "two"]


def test_a_log_without_room_says_nothing_on_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "fedapps.runs.launch.prepare_folder",
        lambda *_, **__: (tmp_path / "run.log").symlink_to("/dev/full"),
    )
    job = [f"{key}={value}" for key, value in (JOB | {"num-rounds": 2}).items()]
    assert main(["run", "method=fedavg", *job, "--engine", "inline", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert lacking(said, "Traceback", "No space") == ["Traceback", "No space"]


def test_a_checkpoint_is_on_disk_before_the_one_before_it_goes(tmp_path, monkeypatch):
    """A power cut between the two must leave one."""
    events = []

    def note(module, name, path_of):
        """Let a function note what it is called for."""
        real = getattr(module, name)

        def noted(first, *others, **more):
            events.append((name, path_of(first)))
            return real(first, *others, **more)

        monkeypatch.setattr(module, name, noted)

    note(os, "fsync", lambda handle: Path(os.readlink(f"/proc/self/fd/{handle}")))
    note(Path, "rename", Path)
    note(shutil, "rmtree", Path)
    checkpoints = Checkpoints(tmp_path, FedAvg(), 1)
    for number in (1, 2):
        events.clear()
        checkpoints.verdict = True
        checkpoints.save(number, to_record(["w"], [np.ones(3)]))
    names = {path.name for path in (tmp_path / "2").iterdir()}
    place = events.index(("rename", tmp_path / "2.partial"))
    assert {path.name for kind, path in events[:place] if kind == "fsync"} == names | {"2.partial"}
    assert {"model.safetensors", "names.json", "run.json"} <= names
    assert events[place + 1 :] == [("fsync", tmp_path), ("rmtree", tmp_path / "1")]


def test_the_next_checkpoint_deletes_what_a_kill_left_of_another(tmp_path):
    (tmp_path / "7.partial" / "best").mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path, FedAvg(), 1)
    checkpoints.verdict = True
    checkpoints.save(2, to_record(["w"], [np.ones(3)]))
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


# --- one writer per results folder ----------------------------------------------------


SIX_ROUNDS = {"method": "fedavg", "num_rounds": 6, "checkpoint_every": 2, "evaluate_every": 0}
HOLD = (
    "import sys, time; from pathlib import Path; from fedapps.records.lock import FolderLock\n"
    "with FolderLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def run_six(folder, *callbacks, **given):
    return go(folder, *callbacks, **SIX_ROUNDS, **given)


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

    run_six(tmp_path, again)
    assert len(said) == 3
    assert all(f"another run is writing to it (process {os.getpid()}, " in line for line in said)
    rows = read_rounds(tmp_path)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len({row["run"] for row in rows}) == 1


def test_a_resumed_run_has_its_own_id(tmp_path):
    with dying_after(5), pytest.raises(KeyboardInterrupt):
        run_six(tmp_path)
    run_six(tmp_path, resume=True)
    ids = [row["run"] for row in read_rounds(tmp_path)]
    assert ids == [ids[0]] * 4 + [ids[5]] * 2
    assert ids[0] != ids[5]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """What two writers leave behind where there are no locks."""
    run_six(tmp_path)
    write_file(tmp_path / "checkpoint" / "6" / "run.json", json.dumps({"run": "other", "kept": []}))
    refused(
        lambda: run_six(tmp_path, resume=True),
        r"round 6 is of run other.*two runs wrote",
        UserError,
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

    refused(lambda: run_six(folder, remove), "was removed or replaced while", FolderLost)
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
    assert run_six(tmp_path)["status"] == "completed"
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
        refused(lambda: FolderLock(tmp_path, wait=0).__enter__(), "", Held)


def test_an_orphan_is_stopped_or_waited_for(tmp_path, monkeypatch, capsys):
    """Flower goes on when the command is killed. The next command asks the deployment
    to stop that run by its id, and waits until it lets write of the folder.
    """
    stopped, held = [], []
    with FolderLock(tmp_path, LAUNCHER):  # the command that will be killed
        held.append(FolderLock(tmp_path, WRITER, "77"))
        held[0].__enter__()

    def stop(folder, run):
        stopped.append((folder.name, run))
        held.pop().__exit__()
        return True

    monkeypatch.setattr("fedapps.deployment.local.stop_run", stop)
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
