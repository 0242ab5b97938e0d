"""Start and end the programs of one run: locate them, choose ports, leave no process
behind.

Everything that a run starts inherits an environment variable with a value unique to the
run. It identifies the run's processes anywhere in the process tree, so that no others
are touched. Linux shows the environment of a process in /proc; elsewhere the leader's
process group is used instead.
"""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedapps.errors import UserError

PROC = Path("/proc")


def threads(count: int) -> dict[str, str]:
    """Return the environment variables that limit the numerical libraries of a process
    to ``count`` threads.
    """
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Cores:
    """The cores that the runs of a sweep share. ``free``: a number in shared memory,
    with a lock. A run that starts takes one in any case, so it may fall below 0.
    """

    def __init__(self, total: int, free: Any) -> None:
        self.total, self.free = total, free

    def take(self) -> None:
        """Take one core, for a run."""
        with self.free.get_lock():
            self.free.value -= 1

    def borrow(self, number: int) -> int:
        """Take up to ``number`` cores that are free; return how many these are."""
        with self.free.get_lock():
            taken: int = max(0, min(number, self.free.value))
            self.free.value -= taken
        return taken

    def give_back(self, number: int = 1) -> None:
        """Give cores back."""
        with self.free.get_lock():
            self.free.value += number


def program(name: str) -> Path:
    """Return the path of program `name` in this Python's environment; PATH is not
    searched. Raises UserError if it is missing.
    """
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return folder / name
    raise UserError(
        f"{name} is not installed next to {sys.executable}: install it there with pip install "
        "'flwr[simulation]'"
    )


def free_port() -> int:
    """Return a currently unused port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def checked_port(port: int) -> int:
    """Return `port` if a server can listen on it; raises UserError if not."""
    if not 1 <= port <= 65535:
        raise UserError(
            f"port = {port}: choose a port in 1..65535, or leave it out to get a free one"
        )
    try:
        with socket.socket() as probe:
            # as the server: a listener blocks the port, a closed connection does not
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError as error:
        reason = (error.strerror or "not usable").lower()
        raise UserError(
            f"port = {port}: it cannot be used ({reason}): choose another one, or leave it "
            "out to get a free one"
        ) from None
    return port


def answers(port: int, seconds: float, authority: Path | None = None) -> bool:
    """Return whether a healthy SuperLink answers on this port, within this time.
    authority: the CA certificate that signed the SuperLink's; None: plain HTTP.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, seconds)
    if authority is not None:
        context = ssl.create_default_context(cafile=str(authority))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=seconds, context=context
        )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def marked(mark: str) -> list[int]:
    """Return the ids of the running processes whose environment contains `mark`
    ("NAME=value"), excluding this one.
    """
    wanted, processes = mark.encode(), []
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # the process has ended, or is another user's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    processes.append(int(entry.name))
    return processes


def signal_marked(mark: str, number: signal.Signals) -> bool:
    """Send a signal to the processes with `mark`; return whether there are any."""
    processes = marked(mark)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
    return bool(processes)


def end_marked(mark: str, leader: "subprocess.Popen[bytes] | None", patience: float) -> None:
    """End the processes with `mark`: send SIGTERM, wait at most `patience` seconds,
    then send SIGKILL.

    leader: the first of them, started in its own session; it is waited for, so that no
    zombie remains.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if PROC.is_dir():
            signal_marked(mark, number)
        elif leader is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader.pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if (leader is None or leader.poll() is not None) and not marked(mark):
                return
            time.sleep(0.05)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM within the context, where possible (Python allows it in
    the main thread only).
    """
    previous = {}
    try:
        with contextlib.suppress(ValueError):
            for number in (signal.SIGINT, signal.SIGTERM):
                previous[number] = signal.signal(number, signal.SIG_IGN)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Within this context, new processes do not import the main program, which may be
    a script that would start the same runs again.
    """
    main = sys.modules["__main__"]
    hidden = {
        name: value
        for name in ("__spec__", "__file__")
        if (value := getattr(main, name, None)) is not None
    }
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


class Guard:
    """A helper process that cleans up if this process is killed before it can do so
    itself.

    Flower's simulation and Ray do not end by themselves when their parent process
    disappears.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        root = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedapps.engines.processes", mark, str(folder)],
            # End-of-file on this pipe starts the cleanup. The kernel sends it whenever
            # and however this process ends.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(root)},
            start_new_session=True,
        )

    def release(self) -> None:
        """Let the helper remove the folder, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main(mark: str, folder: str) -> None:
    """Wait for the parent process to end, then end the processes with `mark` and remove
    `folder`.
    """
    sys.stdin.read()
    end_marked(mark, None, patience=5.0)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
