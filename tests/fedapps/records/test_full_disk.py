"""A full disk, for a while or at a bad moment, does not end the run, and neither
existing files nor records are lost.
"""

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedapps.commands.parser import main
from fedapps.engines.flower import Following, SubmittedRun
from fedapps.records.checkpoint import Checkpoints
from fedapps.records.rounds import read_rounds
from fedapps.runs.execution import execute_inline
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import FedAvg
from fedapps.strategies.base.messages import to_record
from fedapps.toml_text import read_toml
from tests.helpers import lacking, outcome_of, refused

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
    assert "Traceback" not in said
    assert "No space" not in said


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
