"""Flower's helper `flower-superexec` ends: it is started again, or its parent ends and
the run says why.
"""

import json
import shutil
import subprocess
import time
from types import SimpleNamespace

import pytest

from fedapps.deployment.local import Deployment
from fedapps.engines import superlink
from fedapps.engines.flower import Following, Outcome, SubmittedRun
from fedapps.engines.superlink import SUPEREXEC, environment_of, make_superexec, reason_of
from fedapps.errors import RunFailed
from tests.helpers import eventually, refused, write_file

SAID = """INFO :      Starting Flower SuperExec
Traceback (most recent call last):
  File "run_superexec.py", line 256, in run_superexec
httpx.ConnectTimeout: _ssl.c:989: The handshake operation timed out
2026-11-24T09:24:17.177Z INFO [uvicorn.access] 127.0.0.1:55272
"""


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """Start the stand-in as a SuperLink does, and return what started it, which waits;
    the program notes its start and arguments, and fails.
    """
    program = tmp_path / "bin" / SUPEREXEC
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/starts\nsleep 0.1\nexit 3\n')
    program.chmod(0o700)
    monkeypatch.setattr(superlink, "program", lambda name: tmp_path / "bin" / name)
    started = []

    def start(shortest_life):
        path = make_superexec(tmp_path / "programs", shortest_life)
        command = [path / SUPEREXEC, "--parent-pid", "7"]
        code = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); input()"
        with (tmp_path / "log").open("w") as log:
            started.append(
                subprocess.Popen(
                    ["python3", "-c", code, *command], stdin=subprocess.PIPE, stderr=log
                )
            )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def starts(folder):
    path = folder / "starts"
    return path.read_text().splitlines() if path.exists() else []


def test_it_is_started_again_until_its_parent_has_ended(parent, tmp_path):
    process = parent(0)
    eventually(lambda: len(starts(tmp_path)) > 2)
    assert set(starts(tmp_path)) == {"--parent-pid 7"}
    assert process.poll() is None
    assert (
        (tmp_path / "log").read_text().startswith(f"ERROR: {SUPEREXEC} has ended with status 3\n")
    )
    process.kill()
    process.wait()
    count = 0

    def quiet():
        nonlocal count
        before, count = count, len(starts(tmp_path))
        time.sleep(1)
        return before == count

    eventually(quiet)


def test_one_that_does_not_stay_ends_its_parent(parent, tmp_path):
    assert (parent(30).wait(60), starts(tmp_path)) == (-15, ["--parent-pid 7"])


def test_flower_finds_it_before_the_program_itself(tmp_path):
    assert shutil.which(SUPEREXEC, path=environment_of(tmp_path)["PATH"]) == str(
        tmp_path / "programs" / SUPEREXEC
    )


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (SAID, "ConnectTimeout: _ssl.c:989: The handshake operation timed out"),
        ("INFO: all is well\n", "it was probably killed"),
    ],
)
def test_the_run_says_what_ended_and_how_to_go_on(log, reason, tmp_path):
    ended = f"ERROR: {SUPEREXEC} has ended with status 1\n"
    run = SubmittedRun(
        SimpleNamespace(log_text=lambda: log + ended + "more\n" + ended),
        Following(tmp_path / "r" / "log"),
    )
    for status in ("failed", "interrupted"):
        outcome = run.with_reason(Outcome(status, "unknown error"))
        assert (outcome.status, outcome.details) == (
            "failed",
            f"flower-superexec beside the SuperLink has ended with status 1 ({reason}), and the "
            "run's process with it: repeat the command with --resume",
        )
    sound = Outcome("completed", "")
    assert run.with_reason(sound) is sound
    run.superlink.log_text = lambda: log
    assert run.with_reason(outcome) is outcome


# --- why a SuperLink has ended --------------------------------------------------------


# As Flower 1.41 writes them.
STARTED = """INFO :      Starting Flower SuperLink
2026-11-22T10:56:49.699Z INFO [uvicorn.error] Application startup complete.
2026-11-22T10:56:50.100Z INFO [uvicorn.access] 127.0.0.1:1 - "GET /runs/error HTTP/1.1" 200
WARNING :   an error that was survived
"""
LATE = """ERROR :     [/v1/fleet/push-messages][ApiError:2007] SuperNode 5, exception: Run is finished. \
Stopped by user.
"""
REFUSED = """ERROR :     Exit Code: 600
Address (unix:///tmp/c.sock) cannot be parsed.
Please provide a domain name.
For more information, visit: <https://flower.ai/600.html>
"""
KILLED = "its log gives no reason; it was probably killed, by a user or out of memory"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", KILLED),
        (STARTED, KILLED),
        (STARTED + LATE, KILLED),
        (
            STARTED
            + "Traceback (most recent call last):\n  x\nOSError: the disk is full\n"
            + STARTED,
            "OSError: the disk is full",
        ),
        (
            STARTED + "2026-11-22T10:56:51.000Z ERROR [uvicorn.error] address in use\n",
            "2026-11-22T10:56:51.000Z ERROR [uvicorn.error] address in use",
        ),
        (
            STARTED + REFUSED + STARTED,
            "Address (unix:///tmp/c.sock) cannot be parsed. Please provide a domain name.",
        ),
    ],
)
def test_the_reason_is_an_errors_last_word(log, reason):
    assert reason_of(log) == reason


def test_what_a_superlink_said_before_the_run_is_not_its_reason(tmp_path):
    """One of a deployment may have run, and complained, for months."""
    deployment = Deployment.create(tmp_path / "d", {"a": {"partition-id": 0}})
    log = write_file(deployment.superlink.log, "OSError: of long ago\n")
    connection = deployment.connection()
    refused(
        lambda: connection.check_alive(), f"SuperLink has ended unexpectedly: {KILLED}", RunFailed
    )
    log.write_text(log.read_text() + STARTED + "MemoryError\n" + STARTED)
    refused(
        lambda: connection.check_alive(),
        r"SuperLink has ended unexpectedly: MemoryError$",
        RunFailed,
    )
    connection.close()
    assert "sites" in json.loads((tmp_path / "d" / "deployment.json").read_text())
