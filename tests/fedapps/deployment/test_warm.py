"""The stand-in for Flower's client program: the same process from outside, started from
one that has the imports already.
"""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fedapps.deployment import warm_process
from fedapps.deployment.warm import NAME, make_warm
from fedapps.engines.processes import end_marked
from fedapps.runs import installed_app
from fedapps.runs.client_app import app
from fedapps.strategies.base.flower_private import CLIENT_LOADER, CLIENT_PROGRAM
from tests.helpers import eventually, write_file

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks a process that has imported much"
)

# Replaces flwr-clientapp: prints its process id and its imports, and ends with the
# requested status.
CLIENT = """
import json, os, sys, time

def main():
    at = sys.modules
    report = {"pid": os.getpid(), "had": [name for name in ("wave", "app_of_the_run") if name in at], "cwd": os.getcwd()}
    import wave
    sys.path.insert(0, sys.argv[2])
    import app_of_the_run
    report["app"] = app_of_the_run.version
    print(json.dumps(report), flush=True)
    if sys.argv[1] == "sleep":
        time.sleep(60)
    sys.exit(int(sys.argv[1]))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A client program, two versions of an app, and a warm process for it."""
    (tmp_path / "client_program.py").write_text(CLIENT)
    # which no client must get
    (tmp_path / "app_of_the_run.py").write_text("version = 'installed'\n")
    for version in ("one", "two"):
        write_file(tmp_path / version / "app_of_the_run.py", f"version = {version!r}\n")
    program = write_file(
        tmp_path / "program",
        f'#!/bin/sh\nexec {sys.executable} {tmp_path}/client_program.py "$@"\n',
    )
    program.chmod(0o700)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    socket = tmp_path / "socket"
    command = [
        sys.executable,
        "-P",
        warm_process.__file__,
        "keep",
        str(socket),
        str(os.getpid()),
        "client_program:main",
    ]
    keeper = subprocess.Popen(command)
    eventually(socket.exists)
    yield tmp_path, socket, program, keeper
    keeper.kill()
    keeper.wait()


def ask(world, *arguments, **options):
    folder, socket, program, _ = world
    command = [
        sys.executable,
        "-P",
        "-S",
        warm_process.__file__,
        "ask",
        str(socket),
        "client_program:main",
        str(program),
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, **options)


def test_each_client_is_a_separate_process_with_the_imports_of_the_one_before(world):
    folder, _, _, keeper = world
    reports = []
    for status, version in ((0, "one"), (7, "two"), (0, "one")):
        process = ask(world, str(status), str(folder / version))
        out, _ = process.communicate(timeout=30)
        assert process.returncode == status
        reports.append(json.loads(out))
    assert len({keeper.pid, *(one["pid"] for one in reports)}) == 4
    # of the installed modules only, never of an app
    # of the installed modules only, never of an app
    assert [(one["app"], one["cwd"], one["had"]) for one in reports] == [
        ("one", str(folder), []),
        ("two", str(folder), ["wave"]),
        ("one", str(folder), ["wave"]),
    ]


def test_a_client_that_is_ended_ends(world):
    process = ask(world, "sleep", str(world[0] / "one"))
    child = json.loads(process.stdout.readline())["pid"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{child}").exists()


def test_the_warm_process_ends_with_its_parent(world, tmp_path, monkeypatch):
    monkeypatch.setattr(warm_process, "PATIENCE", 0.01)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert warm_process.keep(str(tmp_path / "other"), gone.pid, "os:getpid") == 0
    assert warm_process.keep(str(world[1]), os.getpid(), "os:getpid") == 0  # one is enough


def test_a_site_answers_with_its_own_app_whatever_a_run_brings(tmp_path, monkeypatch):
    """As Flower's program does it: it loads the app of the run, then calls it."""
    loader, program = (
        import_module(name) for name in (CLIENT_LOADER, CLIENT_PROGRAM.split(":")[0])
    )
    called = []

    def run():
        load = loader.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        called.append(load("evil/app", "1.0", "0123"))

    monkeypatch.setattr(loader, "get_load_client_app_fn", None)  # and restored
    monkeypatch.setattr(program, "flwr_clientapp", run)
    installed_app.main()
    assert called == [app]
    script = (make_warm(tmp_path / "own", installed=True) / NAME).read_text()
    assert f"{installed_app.__name__}:main" in script
    assert CLIENT_PROGRAM not in script


def test_without_a_warm_process_the_program_itself_runs_and_one_is_started(tmp_path, monkeypatch):
    """The stand-in as it is written for a site, before Flower's real program, which is
    asked for its help.
    """
    folder = make_warm(tmp_path / ("x" * 120) / "warm")  # longer than a socket's path may be
    mark = f"FEDAPPS_TEST={tmp_path}"
    monkeypatch.setenv(*mark.split("=", 1))
    try:
        done = subprocess.run(
            [folder / NAME, "--help"], capture_output=True, text=True, check=True, timeout=60
        )
        assert "Run a Flower ClientApp" in done.stdout
        eventually((folder / "socket").exists)
        again = subprocess.run(
            [folder / NAME, "--help"], capture_output=True, text=True, check=True, timeout=60
        )
        assert again.stdout.replace(str(folder), "") == done.stdout
        assert (
            subprocess.run([folder / NAME, "--no-such"], capture_output=True, timeout=60).returncode
            == 2
        )
    finally:
        end_marked(mark, None, patience=0)
