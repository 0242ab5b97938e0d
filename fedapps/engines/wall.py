"""A wall around the programs of a run or of a deployment on one machine: a private
network namespace.

A SuperLink on the loopback interface takes runs, which are code, from every process of
the machine that knows its port, whoever started it; the SuperNodes' and Ray's ports are
as open. Flower 1.41 can ask nobody for a name without an identity provider, and none of
its programs listens on a Unix socket (docs/deployment.md says what was tried). So
everything starts inside a network namespace where the system lets a user make one: its
loopback interface is another one, which only processes inside see, and only its user,
and root, can enter it. There is no other interface in it, hence no network.
"""

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedapps.errors import RunFailed

PROGRAM = Path(__file__).with_name("namespace.py")
SECONDS = 10.0  # for the namespace to be made: milliseconds, on a machine that is not overloaded
SESSIONS = Path("/run/systemd/users")  # one file a user; there is no utmp any more on some systems
FIRST_PERSON = 1000  # the least number of a user who is a person
HOLD = [sys.executable, "-I", "-S", str(PROGRAM), "hold"]


class NoWall(RunFailed):
    """Why no namespace can be made here, in some words."""


@dataclass(frozen=True)
class Wall:
    """A network namespace. holder: the process that holds it open; kind: "user" if it
    is in a user namespace, else "net".
    """

    holder: int
    kind: str

    @classmethod
    def of(cls, holder: int, said: Callable[[], str], alive: Callable[[], bool]) -> "Wall":
        """Return the wall that a process started with HOLD makes, once it is ready.
        ``said``: its output. Raises NoWall.
        """
        deadline = time.monotonic() + SECONDS
        while True:
            ended = not alive()
            words = said().strip().rpartition("\n")[2]
            if words.startswith("ready "):
                if os.readlink(f"/proc/{holder}/ns/net") == os.readlink("/proc/self/ns/net"):
                    raise NoWall("its network namespace is not its own")
                return cls(holder, words.split()[1])
            if ended or time.monotonic() > deadline:
                raise NoWall(words.removeprefix("no namespace: ") or "no namespace was made")
            time.sleep(0.005)

    def enter(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` inside; the process keeps its id and
        its user.
        """
        user = ["--user", "--preserve-credentials"] if self.kind == "user" else []
        return [_nsenter(), "--target", str(self.holder), *user, "--net", "--", *command]

    def connect(self, port: int, seconds: float) -> socket.socket:
        """Return a connection to 127.0.0.1:port inside. Raises OSError as
        `socket.create_connection` does.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [
                sys.executable,
                "-I",
                "-S",
                str(PROGRAM),
                "connect",
                str(port),
                str(theirs.fileno()),
                str(seconds),
            ]
            with subprocess.Popen(
                self.enter(command), pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL
            ):
                theirs.close()
                words, descriptors, *_ = socket.recv_fds(ours, 16, 1)
        if descriptors:
            made = socket.socket(fileno=descriptors[0])
            made.settimeout(seconds)  # also since it is not a blocking one where it comes from
            return made
        number = int(words or errno.ENETUNREACH)
        raise OSError(number, os.strerror(number))


@lru_cache(maxsize=1)
def obstacle() -> str:
    """Return why no wall can be built on this system, or "". Tried with a namespace
    that is given up at once.
    """
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    try:
        _nsenter()
        with subprocess.Popen(HOLD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
            assert holder.stdout is not None
            try:
                first = holder.stdout.readline().decode(errors="replace")
                wall = Wall.of(holder.pid, lambda: first, lambda: False)
                wall.connect(1, SECONDS).close()
            finally:
                holder.kill()
    except (NoWall, OSError) as error:
        # Nobody listens inside: a refusal, by the loopback interface of the namespace,
        # is what shall be.
        return "" if isinstance(error, ConnectionRefusedError) else str(error)
    return "somebody listens inside"


def choice(refused: str = "") -> tuple[bool, str]:
    """Return whether a run that opens ports shall be behind a wall, and what is to be
    said to the user, or "".

    refused: why it shall not, if so.
    """
    if not (reason := refused or obstacle()):
        return True, ""
    others = neighbours()
    if not others:
        return False, ""
    return False, (
        f"warning: {', '.join(others)}: logged in here, too. Every process of this machine can "
        "reach the SuperLink and start code "
        f"under your name ({reason}): on a shared machine choose --engine inline, which opens no "
        "port"
    )


def connect(wall: Wall | None, port: int, seconds: float) -> socket.socket:
    """Return a connection to 127.0.0.1:port, behind a wall or without one. Raises
    OSError.
    """
    return (
        wall.connect(port, seconds)
        if wall
        else socket.create_connection(("127.0.0.1", port), seconds)
    )


def entered(wall: Wall | None, command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` behind a wall, or without one."""
    return wall.enter(command) if wall else list(command)


def _nsenter() -> str:
    found = shutil.which("nsenter") or shutil.which("nsenter", path="/usr/bin:/bin:/usr/sbin")
    if not found:
        raise NoWall("nsenter, of util-linux, is not installed")
    return found


def neighbours() -> list[str]:
    """Return the names of the other users who are logged in, as far as the system says;
    never raises.
    """
    try:
        import pwd

        people = {user.pw_name: user.pw_uid for user in pwd.getpwall()}
        done = subprocess.run(["who"], capture_output=True, text=True, timeout=5)
        names = {line.split()[0] for line in done.stdout.splitlines() if line.split()}
        if SESSIONS.is_dir():
            names |= {
                pwd.getpwuid(int(entry.name)).pw_name
                for entry in SESSIONS.iterdir()
                if entry.name.isdigit()
            }
        # Not oneself; nor root, who can do everything anyway; nor the screen that asks
        # for a name.
        return sorted(
            name
            for name in names
            if people.get(name, FIRST_PERSON) >= FIRST_PERSON and people.get(name) != os.getuid()
        )
    # a user without a name, no `who`, /run not readable: a warning is not worth a
    # failure
    except Exception:
        return []
