"""A process that has imported what a client needs, and forks itself for every message:
a client then starts in milliseconds.

Flower starts the program ``flwr-clientapp`` for every message, and finds it by its
name. ``fedapps.deployment.warm`` writes a program of that name which runs this file,
for the front of the SuperNode's PATH:

    python -P warm_process.py ask SOCKET ENTRY PROGRAM [ARGUMENT ...]
        the stand-in: hands its arguments over, ends as the client does
    python -P warm_process.py keep SOCKET PARENT ENTRY
        the warm process: ends with the process PARENT; ENTRY, as module:function, is
        what it calls in place of PROGRAM

The first message finds no warm process: it runs PROGRAM, as without this file, and
starts one for the next. That one imports Flower's client program, and after every
message what the client had imported from the installed packages, PyTorch for one. It
never imports an app: every message still has a process of its own, which loads the app
of its run as always and leaves nothing behind.

This file imports no part of fedapps: the app of a run has packages of the same names,
and must not find them imported.
"""

import atexit
import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

LIMIT = 1 << 20  # bytes of a request or a report
PATIENCE = 1.0  # seconds between two looks at the parent
LONGEST = 100  # characters of a Unix socket's path, of which systems allow 103 to 107


# --- the stand-in ---------------------------------------------------------------------


def ask(path: str, entry: str, program: str, arguments: list[str]) -> int:
    """Have the warm process run the client and return its exit status; run the program
    itself where there is none.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(near(path))
        except OSError:
            start_keeping(path, entry)
            os.execv(program, [program, *arguments])
        request = (
            json.dumps({"arguments": [program, *arguments], "cwd": os.getcwd()}).encode() + b"\n"
        )
        socket.send_fds(line, [request], [1, 2])
        with line.makefile("rb") as answers:
            child = int(answers.readline() or 0)
            if not child:  # the warm process ended before it forked: nothing has run yet
                os.execv(program, [program, *arguments])
            signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
            return int(answers.readline() or 1)


def start_keeping(path: str, entry: str) -> None:
    """Start the warm process, which ends with this one's parent: the program that
    starts the clients.
    """
    parent = os.getppid()
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    own = os.path.abspath(__file__)
    os.execv(sys.executable, [sys.executable, "-P", own, "keep", path, str(parent), entry])


def near(path: str) -> str:
    """Return a name of the socket that is short enough for one."""
    if len(path) <= LONGEST:
        return path
    return f"/proc/self/fd/{os.open(os.path.dirname(path), os.O_RDONLY)}/{os.path.basename(path)}"


# --- the warm process -----------------------------------------------------------------


def keep(path: str, parent: int, entry: str) -> int:
    """Fork for every request until the parent has ended; return the exit status."""
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another one is there
    module, _, name = entry.partition(":")
    run: Callable[[], Any] = getattr(import_module(module), name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o077)
    listener.bind(near(path))
    listener.listen(16)
    # by the pipe that brings a client's report and ends with it
    clients: dict[int, tuple[int, socket.socket]] = {}
    while alive(parent):
        waiting: list[int | socket.socket] = [listener, *clients]
        ready, _, _ = select.select(waiting, [], [], PATIENCE)
        for one in ready:
            if not isinstance(one, int):
                line, _ = listener.accept()
                request, streams, _, _ = socket.recv_fds(line, LIMIT, 2)
                if not request.endswith(b"\n") or len(streams) != 2:
                    line.close()
                    continue
                report, end = os.pipe()
                # else the child's collector would touch, and so copy, all that it
                # shares with this process
                gc.freeze()
                if not (child := os.fork()):
                    listener.close()
                    run_client(run, json.loads(request), streams, end)
                os.close(end)
                for stream in streams:
                    os.close(stream)
                clients[report] = child, line
                tell(line, child)
            else:
                child, line = clients.pop(one)
                with os.fdopen(one, "rb") as pipe:
                    names = pipe.read(LIMIT)
                tell(line, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                line.close()
                warm(names.decode().split())
    os.unlink(path)
    return 0


def alive(process: int) -> bool:
    """Return whether a process of this user is there."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):  # the second: the number is another one's by now
        return False
    return True


def tell(line: socket.socket, number: int) -> None:
    """Send a number to the stand-in, if it has not gone."""
    with contextlib.suppress(OSError):
        line.sendall(b"%d\n" % (number if number >= 0 else 128 - number))


def run_client(
    run: Callable[[], Any], request: dict[str, Any], streams: list[int], report: int
) -> NoReturn:
    """Run the client, in a forked process, as the program would; end with its exit
    status.
    """
    for stream, given in zip((1, 2), streams, strict=True):
        os.dup2(given, stream)
        os.close(given)
    os.chdir(request["cwd"])
    sys.argv = request["arguments"]
    before = set(sys.modules)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # else every client would begin with the state of the warm process
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(OSError):
            os.write(report, " ".join(installed(before))[: LIMIT // 16].encode())
        os.close(report)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # to take apart everything that was imported takes longer than many a client


def installed(before: set[str]) -> list[str]:
    """Return the modules imported since, in this order, that are of installed packages:
    not those of an app, wherever it lies.
    """
    roots = tuple(
        os.path.join(sysconfig.get_path(kind), "")
        for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    found = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name not in before and isinstance(origin, str) and origin.startswith(roots):
            found.append(name)
    return found


def warm(names: list[str]) -> None:
    """Import modules for the next client; whatever prevents it, that client does it
    itself.
    """
    for name in names:
        with contextlib.suppress(Exception):
            import_module(name)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]))
    sys.exit(keep(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
