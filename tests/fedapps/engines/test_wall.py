"""The wall around a run's programs: who is outside reaches no port, who is inside
reaches all of them, and what is said without one.
"""

import os
import socket
import subprocess
import sys

import pytest

from fedapps.deployment.local import Deployment
from fedapps.engines import wall
from fedapps.engines.processes import free_port, marked
from fedapps.engines.wall import HOLD, NoWall, Wall
from fedapps.errors import UserError
from tests.helpers import lacking, reached, refused, write_file

WALL = pytest.mark.skipif(bool(wall.no_wall_reason()), reason=f"no wall: {wall.no_wall_reason()}")
SERVER = """
import os, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("listening", os.getpid(), os.getuid(), *(name for _, name in socket.if_nameindex()), flush=True)
    while True:
        server.accept()[0].sendall(b"hello")
"""


@pytest.fixture
def built():
    holder = subprocess.Popen(HOLD, stdout=subprocess.PIPE, text=True)
    first = holder.stdout.readline()
    yield Wall.of(holder.pid, lambda: first, lambda: True)
    holder.kill()
    holder.communicate()


@WALL
def test_a_port_inside_is_open_to_those_inside_only(built):
    port = free_port()
    server = subprocess.Popen(
        built.enter([sys.executable, "-c", SERVER, str(port)]), stdout=subprocess.PIPE, text=True
    )
    try:
        said = server.stdout.readline().split()
        # the same process and user, and no network
        assert said == ["listening", str(server.pid), str(os.getuid()), "lo"]
        assert not reached(port)
        with built.connect(port, 5) as connection:
            assert connection.recv(5) == b"hello"
        with pytest.raises(ConnectionRefusedError):
            built.connect(free_port(), 5)
    finally:
        server.kill()
        server.communicate()
    with socket.create_server(("127.0.0.1", 0)) as listener:  # outside, it is not found inside
        outside = listener.getsockname()[1]
        assert reached(outside)
        with pytest.raises(ConnectionRefusedError):
            built.connect(outside, 5)


def test_a_deployment_whose_wall_has_fallen_is_not_mistaken_for_one_without(tmp_path):
    """Whoever listens outside on its port gets no connection, and no site starts
    outside.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Deployment.create(tmp_path / "d", {"a": {"partition-id": 0}}, walled=True)
        made.port = listener.getsockname()[1]
        assert reached(made.port)
        with pytest.raises(ConnectionRefusedError):
            made.connect(2)
        assert not made.healthy()
        refused(lambda: made.check(), r"no connection \(connection refused\)", UserError)
        for start in (made.sites["a"].launch, made.start_superlink):
            refused(
                start, r"the deployment is not running: start it with `fedapps deploy up", NoWall
            )
    assert marked(made.mark) == []
    assert Deployment.open(tmp_path / "d").holder is not None


@WALL
def test_a_new_wall_is_waited_for_though_an_old_one_said_ready(tmp_path):
    made = Deployment.create(tmp_path / "d", {"a": {"partition-id": 0}}, walled=True)
    here = os.readlink("/proc/self/ns/net")
    try:
        for _ in range(2):
            made.build_wall()
            assert os.readlink(f"/proc/{made.wall.holder}/ns/net") != here
            made.holder.kill()
            with pytest.raises(NoWall):
                _ = made.wall
    finally:
        made.remove()
    assert marked(made.mark) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('no namespace: Operation not permitted')", "Operation not permitted"),
        ("import time; print(flush=True); time.sleep(60)", "no namespace was made"),
        # not the truth
        (
            "import time; print('ready net', flush=True); time.sleep(60)",
            "the process is not in a separate network namespace",
        ),
        ("", "nsenter (package util-linux) is not installed"),
    ],
)
def test_what_stands_in_the_way_is_said(monkeypatch, code, reason):
    monkeypatch.setattr(wall, "HOLD", [sys.executable, "-c", code])
    monkeypatch.setattr(wall.shutil, "which", lambda *_, **__: code and "nsenter")
    wall.no_wall_reason.cache_clear()
    assert wall.no_wall_reason() == reason
    wall.no_wall_reason.cache_clear()


def test_others_who_are_logged_in_are_named_where_there_is_no_wall(monkeypatch):
    monkeypatch.setattr(wall, "no_wall_reason", lambda: "Operation not permitted")
    monkeypatch.setattr(wall, "neighbours", lambda: ["anna", "ben"])
    walled, warning = wall.decide_wall()
    assert not walled
    assert warning.startswith(
        "warning: other users are logged in (anna, ben). Every process of this machine can reach "
        "the SuperLink"
    )
    assert lacking(warning, "(Operation not permitted)", "--engine inline") == []
    assert "(--no-wall)" in wall.decide_wall("--no-wall")[1]
    monkeypatch.setattr(wall, "neighbours", list)
    assert wall.decide_wall() == (False, "")
    monkeypatch.setattr(wall, "no_wall_reason", lambda: "")
    assert wall.decide_wall() == (True, "")


def test_who_is_logged_in(tmp_path, monkeypatch):
    import pwd

    me = pwd.getpwuid(os.getuid()).pw_name
    who = write_file(
        tmp_path / "who",
        f"#!/bin/sh\necho '{me} pts/0 2026-01-01 10:00'\necho 'anna pts/1 2026-01-01 10:00 "
        "(10.0.0.9)'\necho 'root tty1'\n",
    )
    who.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(wall, "SESSIONS", tmp_path / "users")
    assert wall.neighbours() == ["anna"]
    write_file(tmp_path / "users" / "65534")
    assert wall.neighbours() == sorted({"anna", pwd.getpwuid(65534).pw_name})
    who.unlink()
    assert wall.neighbours() == []  # a question that cannot be answered is no failure
