"""Flower's programs in the background: their environment, their start and their end."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from fedapps.engines.processes import marked, program, signal_marked, threads
from fedapps.engines.wall import Wall, entered

END_SECONDS = 10.0  # timeout for programs to end after SIGTERM
#: Flower's program that starts the processes of runs or of messages.
SUPEREXEC = "flower-superexec"
#: Seconds. A program that ends sooner after its start is not started again.
SHORTEST_LIFE = 30
#: What the stand-in writes to the log.
ENDED = re.compile(rf"ERROR: {SUPEREXEC} has ended with status (\d+)")

# The braces make the shell read all of it first. SIGTERM ends the shell at once, and
# the program notices by itself that its parent has ended.
SCRIPT = """#!/bin/sh
{{
while kill -0 "$PPID" 2>/dev/null; do
  began=$(date +%s)
  {program} "$@"
  echo "ERROR: {name} has ended with status $?" >&2
  [ $(($(date +%s) - began)) -ge {shortest} ] || {{ kill "$PPID"; exit; }}
done
exit
}}
"""


class Program:
    """A background program and its child processes, which their Flower home identifies.

    folder: holds its log and process id, and `cwd`, where it starts. wall: the wall to
    start behind. process: set if this process started it, to wait for its end.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.folder, self.command, self.log = folder, list(command), folder / "log"
        self.environment = dict(environment)
        self.mark = f"FLWR_HOME={environment['FLWR_HOME']}"
        self.wall: Wall | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(
        self, command: Sequence[str], folder: Path, output: int | IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the program's environment and behind its wall, in the
        subfolder `cwd` of a folder and in a session of its own.

        The terminal's Ctrl-C must reach this process only; otherwise a run could not be
        stopped gracefully.
        """
        return subprocess.Popen(
            entered(self.wall, command),
            cwd=folder / "cwd",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def launch(self) -> int:
        """Start the program. Return the offset in bytes at which its log begins."""
        begin = self.size()
        with self.log.open("ab") as log:
            self.log.chmod(0o600)
            self.process = self.spawn(self.command, self.folder, log)
        (self.folder / "pid").write_text(str(self.process.pid))
        return begin

    def alive(self) -> bool:
        """Return whether the program is running, no matter which process started it."""
        if self.process is not None:
            return self.process.poll() is None
        path = self.folder / "pid"
        return path.exists() and int(path.read_text()) in marked(self.mark)

    def size(self) -> int:
        """Return the bytes of the log."""
        return self.log.stat().st_size if self.log.exists() else 0

    def words(self, begin: int = 0) -> str:
        """Return the log from byte `begin` on, without ANSI colours."""
        text = self.log.read_bytes()[begin:].decode(errors="replace") if self.log.exists() else ""
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def kill(self) -> None:
        """End the program and its child processes at once (SIGKILL), as in a power
        failure.
        """
        while signal_marked(self.mark, signal.SIGKILL):
            time.sleep(0.02)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)

    def wall_held(self, alive: Callable[[], bool] | None = None) -> Wall:
        """Return the wall that the program, started with ``HOLD``, holds. Raises
        NoWall.
        """
        pid = int((self.folder / "pid").read_text())
        return Wall.of(pid, self.words, alive or self.alive)


def end_programs(programs: Sequence[Program]) -> None:
    """Send SIGTERM to all programs once, and kill the remaining ones after END_SECONDS.
    A second SIGTERM would abort their shutdown.
    """
    for one in programs:
        signal_marked(one.mark, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while any(marked(one.mark) for one in programs) and time.monotonic() < deadline:
        time.sleep(0.05)
    for one in programs:
        one.kill()


def environment_of(home: Path) -> dict[str, str]:
    """Return an environment in which Flower's programs find each other and use their
    own `home` and one thread per process.
    """
    given = os.environ
    own = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PYTHONUNBUFFERED": "1",  # otherwise the log arrives in blocks
        # Flower starts its helpers by bare name
        "PATH": os.pathsep.join(
            map(
                str,
                (
                    make_superexec(home / "programs"),
                    program("flwr").parent,
                    given.get("PATH", os.defpath),
                ),
            )
        ),
    }
    for name in ("NO_PROXY", "no_proxy"):  # Flower's programs communicate over HTTP on this machine
        own[name] = ",".join(filter(None, [given.get(name), "127.0.0.1", "localhost"]))
    # A second thread on a one-CPU worker makes small models many times slower.
    return {**threads(1), **given, **own}


def make_superexec(folder: Path, shortest_life: int = SHORTEST_LIFE) -> Path:
    """Write a stand-in for ``SUPEREXEC``, which starts it again when it ends, into a
    folder that goes first on the PATH of a SuperLink or SuperNode; return the folder.

    A SuperLink or SuperNode starts the program once, and does not notice its end, after
    which it waits for ever. A TLS handshake of more than 5 seconds, on a busy machine,
    ends it, and the processes that it has started with it, so that the run fails, too.
    If the program does not stay, the stand-in ends the SuperLink or SuperNode.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, command = folder / SUPEREXEC, shlex.quote(str(program(SUPEREXEC)))
    text = SCRIPT.format(program=command, name=SUPEREXEC, shortest=shortest_life)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
    return folder
