"""Flower's programs in the background, and a private SuperLink: started on a loopback
port in a clean environment, controlled through the `flwr` command, and ended.

`flwr run` alone uses any SuperLink that answers on its fixed port, with that
SuperLink's working directory and environment. Here each SuperLink has an empty working
directory (Ray puts it first on its workers' import path), its own Flower home and its
own Ray folder, all in one temporary folder. The path of the home also identifies its
processes.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from fedapps.engines.processes import (
    Guard,
    answers,
    checked_port,
    end_marked,
    free_port,
    marked,
    program,
    signal_marked,
    signals_ignored,
    threads,
)
from fedapps.errors import RunFailed
from fedapps.strategies.base.flower_private import EXIT, HARMLESS

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

    folder: holds its log and process id, and `cwd`, where it starts. process: set if
    this process started it, to wait for its end.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.folder, self.command, self.log = folder, list(command), folder / "log"
        self.environment = dict(environment)
        self.mark = f"FLWR_HOME={environment['FLWR_HOME']}"
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(
        self, command: Sequence[str], folder: Path, output: int | IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the program's environment, in the subfolder `cwd` of a
        folder and in a session of its own.

        The terminal's Ctrl-C must reach this process only; otherwise a run could not be
        stopped gracefully.
        """
        return subprocess.Popen(
            command,
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


TICK = 0.1  # seconds between two calls of `poll`
# timeout for the SuperLink's answer, for one `flwr` command, and for the first line of
# the run's log
START_SECONDS = 120.0
# timeout of each graceful step of shutting down, before the next, more forceful one
STOP_SECONDS = 10.0
# timeout for processes left over afterwards: Ray's helpers, which may ignore SIGTERM
LEFTOVER_SECONDS = 2.0
# A Unix socket's path is limited to 107 characters, and Ray adds about 70 to its
# folder: beyond this length, /tmp is used.
LONGEST_TEMP_DIR = 24


class Connection:
    """Runs `flwr` commands, in which the connection `own` is a SuperLink, in the
    environment of this, which is `server`.

    base: folder for their output; commands start in its subfolder `cwd`. poll: called
    about ten times a second by every method that waits.
    """

    def __init__(self, base: Path, server: Program, poll: Callable[[], None]) -> None:
        self.flwr, self.base, self.server, self.poll = program("flwr"), base, server, poll
        self.begin = server.size()

    def alive(self) -> bool:
        """Return whether the SuperLink is running."""
        return self.server.alive()

    def log_text(self) -> str:
        """Return the SuperLink's log since this connection was made. The whole log may
        cover months.
        """
        return self.server.words(self.begin)

    def close(self) -> None:
        """Remove the folder of the commands' output."""
        shutil.rmtree(self.base, ignore_errors=True)

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run one `flwr` command and return its JSON output. Raises RunFailed if there
        is none.
        """
        answer = self.base / "answer.json"
        with answer.open("wb") as output:
            process = self.spawn([str(self.flwr), *arguments, "--format", "json"], output)
        self.wait(lambda: process.poll() is not None, f"`flwr {arguments[0]}` did not answer")
        text = answer.read_text(errors="replace")
        try:
            return dict(json.loads(text[text.index("{") :]))
        except ValueError:
            raise RunFailed(f"`flwr {arguments[0]}` gave no answer: {one_line(text)}") from None

    def spawn(self, command: list[str], output: int | IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a program in the SuperLink's environment."""
        return self.server.spawn(command, self.base, output)

    def wait(
        self, done: Callable[[], bool], failure: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until something is done; ``check`` is called meanwhile. Raises RunFailed
        with ``failure`` after START_SECONDS.
        """
        deadline = time.monotonic() + START_SECONDS
        while not done():
            check()
            if time.monotonic() > deadline:
                raise RunFailed(f"{failure} within {START_SECONDS:.0f} s")
            self.tick()

    def tick(self) -> None:
        """Call ``poll``, then sleep for TICK seconds."""
        self.poll()
        time.sleep(TICK)

    def check_alive(self) -> None:
        """Raise RunFailed if the SuperLink has ended."""
        if not self.alive():
            raise RunFailed(
                f"Flower's SuperLink has ended unexpectedly: {reason_of(self.log_text())}"
            )

    def stop_run(self, run_id: str) -> None:
        """Ask the SuperLink to stop a run, within a bounded time."""
        if self.alive():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.spawn([str(self.flwr), "stop", run_id, "own"], subprocess.DEVNULL).wait(
                    STOP_SECONDS
                )


class SuperLink(Connection):
    """A SuperLink in simulation mode, the processes it starts, and its temporary folder
    `base`.

    port: on the loopback interface; None: a free one. cluster: the address of the Ray
    cluster that the run joins. within: where `base` is made; None: among temporary
    files. As a context manager it starts in the background, and ends.
    """

    def __init__(
        self,
        port: int | None = None,
        cluster: str = "",
        within: Path | None = None,
    ) -> None:
        # Located before the folder is created: a missing program is a user error and
        # must leave nothing behind.
        command, _ = [str(program("flower-superlink"))], program("flwr")
        self.port = free_port() if port is None else checked_port(port)
        self.closed = False
        base = _temporary_folder(within)
        ray = {
            "RAY_ADDRESS": cluster or "local",
            "RAY_TMPDIR": str(base / "ray"),
            "RAY_USAGE_STATS_ENABLED": "0",
            # saves two processes that Flower's simulation does not use
            "RAY_prestart_worker_first_driver": "0",
            # otherwise the titles of some Ray processes overwrite the environment that
            # identifies them
            "SPT_NOENV": "1",
        }
        command += ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(self.port)]
        # Otherwise Flower would install the app's dependencies, including torch, anew
        # for every run.
        command += ["--disable-runtime-dependency-installation"]
        environment = environment_of(base / "home") | ray
        super().__init__(base, Program(base, command, environment), lambda: None)
        (base / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "own"\n[superlink.own]\naddress = '
            f'"127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.guard = Guard(self.server.mark, base)

    def __enter__(self) -> Self:
        try:
            self.server.launch()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the SuperLink if necessary, and wait until it answers. Raises RunFailed
        with the end of its log if it does not.
        """
        if self.server.process is None:
            self.server.launch()
        self.wait(
            lambda: answers(self.port, 1.0),
            "Flower's SuperLink did not answer",
            self.check_alive,
        )

    def close(self) -> None:
        """End all processes and remove the folder, once. Ctrl-C is ignored until that
        is done.
        """
        if self.closed:
            return
        while True:
            try:
                with signals_ignored():
                    self._end()
                    self.closed = True
                return
            except KeyboardInterrupt:  # it arrived before the signals were ignored
                continue

    def _end(self) -> None:
        if self.server.process is not None:
            self.server.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.process.wait(STOP_SECONDS)
        # Always, even if no process is known: an interrupt may have occurred between
        # its start and the assignment.
        end_marked(self.server.mark, self.server.process, LEFTOVER_SECONDS)
        self.guard.release()


def one_line(text: str) -> str:
    """Return the end of a text (500 characters) on one line, for a message."""
    return " ".join(text.split())[-500:]


def reason_of(log: str) -> str:
    """Return the reason why a Flower program ended, on one line: the last error in its
    log.

    A program that is killed logs no error. Its last line, of level INFO, is not a
    reason ("uvicorn.error" is the name of a logger).
    """
    exits = EXIT.findall(log)
    errors = [
        line for line in log.splitlines() if "error" in line.lower() and not HARMLESS.match(line)
    ]
    reasons = exits or errors
    return (
        one_line(reasons[-1])
        if reasons
        else "its log gives no reason; it was probably killed, by a user or out of memory"
    )


def _temporary_folder(within: Path | None) -> Path:
    temporary = str(within) if within else tempfile.gettempdir()
    if not within and len(temporary) > LONGEST_TEMP_DIR and os.access("/tmp", os.W_OK):
        temporary = "/tmp"
    base = Path(tempfile.mkdtemp(prefix="fl-", dir=temporary))
    for name in ("home", "cwd", "ray"):
        (base / name).mkdir(parents=True)
    return base
