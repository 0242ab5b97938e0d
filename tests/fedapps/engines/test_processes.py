"""Ports, programs, and the mark by which a run's processes are found and ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from fedapps.engines import processes
from fedapps.errors import UserError
from tests.helpers import eventually, refused, write_file

pytestmark = pytest.mark.slow

DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', "
    "flush=True); time.sleep(60)"
)
LINUX = pytest.mark.skipif(not processes.PROC.is_dir(), reason="needs /proc")


@contextlib.contextmanager
def child(mark: str, code: str = DEAF):
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | dict([mark.split("=", 1)]),
        stdout=subprocess.PIPE,
    ) as started:
        try:
            assert started.stdout.readline() == b"ready\n"
            yield started
        finally:
            started.kill()


@LINUX
def test_only_the_exact_mark_is_found_and_ended(tmp_path):
    mark = f"FLWR_HOME={tmp_path}/home"
    with child(mark) as ours, child(mark + "2") as longer, child("NOT_" + mark) as other:
        assert processes.marked(mark) == [ours.pid]
        processes.end_marked(mark, ours, patience=0.2)  # it does not hear SIGTERM
        assert (ours.poll(), processes.marked(mark)) == (-signal.SIGKILL, [])
        assert longer.poll() is None
        assert other.poll() is None


@LINUX
def test_a_guard_cleans_up_after_a_process_that_was_killed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    mark = f"FLWR_HOME={folder}"
    owner = (
        "import sys, time; from pathlib import Path; from fedapps.engines.processes import Guard\n"
        "guard = Guard(sys.argv[1], Path(sys.argv[2])); print('ready', flush=True); time.sleep(60)"
    )
    with child(mark, DEAF) as orphan:
        parent = subprocess.Popen(
            [sys.executable, "-c", owner, mark, str(folder)],
            stdout=subprocess.PIPE,
            cwd=os.getcwd(),
            start_new_session=True,
        )
        assert parent.stdout.readline() == b"ready\n"
        assert folder.exists()
        assert orphan.poll() is None
        os.killpg(parent.pid, signal.SIGKILL)  # with all that is in its group
        parent.communicate()
        orphan.wait(30)
        eventually(lambda: not folder.exists())


def test_ports():
    free = processes.free_port()
    assert processes.checked_port(free) == free
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        assert not processes.answers(taken, 1.0)
        refused(
            lambda: processes.checked_port(taken),
            rf"^port = {taken}: it cannot be used \(.*in use\): choose another",
            UserError,
        )
    refused(
        lambda: processes.checked_port(70000),
        r"port = 70000: choose a port in 1\.\.65535",
        UserError,
    )


def test_programs_come_from_this_environment_only(tmp_path, monkeypatch):
    foreign = write_file(tmp_path / "elsewhere", "#!/bin/sh\n")
    foreign.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(lambda: processes.program("elsewhere"), "elsewhere is not installed next to", UserError)
    assert processes.program("flwr").is_file()


def test_signals_are_ignored_meanwhile_and_then_as_before():
    before = signal.getsignal(signal.SIGINT)
    with processes.signals_ignored():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
