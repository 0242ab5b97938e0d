"""A process that has imported the packages of a client, and forks itself for every
message. A client then starts in milliseconds.

Flower starts the program ``flwr-clientapp`` for every message, and finds it by its
name. ``fedapps.deployment.warm`` writes a program with that name, which runs this file,
into a folder at the front of the SuperNode's PATH:

    python -P warm_process.py ask SOCKET ENTRY PROGRAM [ARGUMENT ...]
        the stand-in: passes its arguments on and ends with the client's exit status
    python -P warm_process.py keep SOCKET PARENT ENTRY
        the warm process: ends with the process PARENT; it calls ENTRY, given as
        module:function, instead of PROGRAM

For the first message there is no warm process: the stand-in runs PROGRAM, as without
this file, and starts a warm process for the next message. This process imports Flower's
client program and, after every message, the installed packages that the client has
imported, such as PyTorch. It never imports an app: every message still has its own
process, which loads the app of its run and leaves nothing behind.

This file imports no part of fedapps: the app of a run has packages of the same names,
and must import its own.
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
    """Let the warm process run the client, and return its exit status. Without a warm
    process, run the program itself.
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
    """Start the warm process. It ends with the parent of this process, the program that
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
    """Return a path of the socket that is short enough for a Unix socket."""
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
        return 0  # another warm process is running
    module, _, name = entry.partition(":")
    run: Callable[[], Any] = getattr(import_module(module), name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o077)
    listener.bind(near(path))
    listener.listen(16)
    # by the pipe that receives a client's report and closes with the client
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
                # otherwise the child's garbage collector would touch, and so copy, all
                # memory that it shares with this process
                gc.freeze()
                if not (child := os.fork()):
                    listener.close()
                    run_client(run, json.loads(request), streams, end)
                os.close(end)
                for stream in streams:
                    os.close(stream)
                clients[report] = child, line
                send(line, child)
            else:
                child, line = clients.pop(one)
                with os.fdopen(one, "rb") as pipe:
                    names = pipe.read(LIMIT)
                send(line, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                line.close()
                warm(names.decode().split())
    os.unlink(path)
    return 0


def alive(process: int) -> bool:
    """Return whether a process of this user is running."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):  # PermissionError: another user's process
        return False
    return True


def send(line: socket.socket, number: int) -> None:
    """Send a number to the stand-in, if it is still running."""
    with contextlib.suppress(OSError):
        line.sendall(b"%d\n" % (number if number >= 0 else 128 - number))


def run_client(
    run: Callable[[], Any], request: dict[str, Any], streams: list[int], report: int
) -> NoReturn:
    """Run the client in a forked process, as the program would, and end with its exit
    status.
    """
    for stream, given in zip((1, 2), streams, strict=True):
        os.dup2(given, stream)
        os.close(given)
    os.chdir(request["cwd"])
    sys.argv = request["arguments"]
    before = set(sys.modules)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # otherwise every client would have the same random state
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
    os._exit(status)  # a normal exit would take long to tear down the imported modules


def installed(before: set[str]) -> list[str]:
    """Return the modules of installed packages that are imported now but not in
    ``before``, in order. Modules of an app are left out.
    """
    roots = tuple(
        os.path.join(sysconfig.get_path(kind), "")
        for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name not in before and isinstance(origin, str) and origin.startswith(roots):
            names.append(name)
    return names


def warm(names: list[str]) -> None:
    """Import modules for the next client. If that fails, the client imports them
    itself.
    """
    for name in names:
        with contextlib.suppress(Exception):
            import_module(name)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]))
    sys.exit(keep(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
