"""A wall around the programs of a run or of a deployment on one machine: a private
network namespace.

Every process of the machine that can reach the SuperLink's port can start a run, and a
run executes code as your user. The ports of SuperNodes and Ray are as open. Flower 1.41
cannot authenticate users without an identity provider, and none of its programs listens
on a Unix socket (docs/deployment.md lists what was tried). So everything starts inside
a network namespace, if the system lets a user create one. It has its own loopback
interface, which only processes inside can reach, and only its user and root can enter
it. It has no other interface, so there is no network.
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
SECONDS = 10.0  # timeout for making the namespace, which usually takes milliseconds
SESSIONS = Path("/run/systemd/users")  # one file per user; some systems have no utmp any more
FIRST_PERSON = 1000  # the lowest user id of a person
HOLD = [sys.executable, "-I", "-S", str(PROGRAM), "hold"]


class NoWall(RunFailed):
    """The reason why no namespace can be made here."""


@dataclass(frozen=True)
class Wall:
    """A network namespace. holder: the process that holds it open; kind: "user" if it
    is in a user namespace, else "net".
    """

    holder: int
    kind: str

    @classmethod
    def of(cls, holder: int, output: Callable[[], str], alive: Callable[[], bool]) -> "Wall":
        """Wait until the process ``holder``, started with HOLD, is ready, and return
        its wall. ``output`` returns the text that it printed. Raises NoWall.
        """
        deadline = time.monotonic() + SECONDS
        while True:
            ended = not alive()
            words = output().strip().rpartition("\n")[2]
            if words.startswith("ready "):
                if os.readlink(f"/proc/{holder}/ns/net") == os.readlink("/proc/self/ns/net"):
                    raise NoWall("the process is not in a separate network namespace")
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
            made.settimeout(seconds)  # it arrives as a non-blocking socket
            return made
        number = int(words or errno.ENETUNREACH)
        raise OSError(number, os.strerror(number))


@lru_cache(maxsize=1)
def no_wall_reason() -> str:
    """Return the reason why no wall can be built on this system, or "". It makes a
    namespace to find out, and ends it at once.
    """
    if sys.platform != "linux":
        return "only Linux has network namespaces"
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
        # Nothing listens inside, so the loopback interface of the namespace must refuse
        # the connection.
        return "" if isinstance(error, ConnectionRefusedError) else str(error)
    return "another program listens in the new namespace"


def decide_wall(refused: str = "") -> tuple[bool, str]:
    """Return whether a run that opens ports is put behind a wall, and a warning for the
    user or "".

    refused: the reason if no wall is wanted.
    """
    if not (reason := refused or no_wall_reason()):
        return True, ""
    others = neighbours()
    if not others:
        return False, ""
    return False, (
        f"warning: other users are logged in ({', '.join(others)}). Every process of this machine "
        f"can reach the SuperLink and execute code as your user ({reason}). On a shared machine "
        "choose --engine inline, which opens no port"
    )


def connect(wall: Wall | None, port: int, seconds: float) -> socket.socket:
    """Return a connection to 127.0.0.1:port, inside the wall if there is one. Raises
    OSError.
    """
    return (
        wall.connect(port, seconds)
        if wall
        else socket.create_connection(("127.0.0.1", port), seconds)
    )


def entered(wall: Wall | None, command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command``, inside the wall if there is one."""
    return wall.enter(command) if wall else list(command)


def _nsenter() -> str:
    path = shutil.which("nsenter") or shutil.which("nsenter", path="/usr/bin:/bin:/usr/sbin")
    if not path:
        raise NoWall("nsenter (package util-linux) is not installed")
    return path


def neighbours() -> list[str]:
    """Return the names of the other users who are logged in, as far as the system shows
    them. Never raises.
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
        # without this user, root (who can do everything anyway) and the login screen
        return sorted(
            name
            for name in names
            if people.get(name, FIRST_PERSON) >= FIRST_PERSON and people.get(name) != os.getuid()
        )
    # A user without a name, no `who`, /run not readable: skip the warning, do not fail.
    except Exception:
        return []
