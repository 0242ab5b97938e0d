"""A private SuperLink: started on a loopback port in a clean environment, controlled
through the `flwr` command, and ended.

`flwr run` alone uses any SuperLink that answers on its fixed port, with that
SuperLink's working directory and environment. Here each SuperLink has an empty working
directory (Ray puts it first on its workers' import path), its own Flower home and its
own Ray folder, all in one temporary folder. The path of the home also identifies its
processes.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from fedapps.engines.processes import Guard, answers, end_marked, program, signals_ignored, threads
from fedapps.engines.superexec import make_superexec
from fedapps.engines.wall import HOLD, Wall, connect, entered
from fedapps.errors import RunFailed
from fedapps.strategies.base.flower_private import EXIT, HARMLESS

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
    """Runs `flwr` commands in a separate environment, in which the connection `own` is
    a SuperLink.

    base: folder for their output; programs start in its subfolder `cwd`. environment:
    of everything started. poll: called about ten times a second by every method that
    waits.
    """

    def __init__(
        self, base: Path, environment: Mapping[str, str], poll: Callable[[], None]
    ) -> None:
        self.flwr = program("flwr")
        self.base, self.environment, self.poll = base, dict(environment), poll
        self.wall: Wall | None = None

    def alive(self) -> bool:
        """Return whether the SuperLink is running."""
        raise NotImplementedError

    def log_text(self) -> str:
        """Return the log of the SuperLink and its helpers."""
        raise NotImplementedError

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run one `flwr` command and return its JSON output. Raises RunFailed if there
        is none.
        """
        answer = self.base / "answer.json"
        with answer.open("wb") as output:
            process = self.spawn([str(self.flwr), *arguments, "--format", "json"], output)
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"`flwr {arguments[0]}` did not answer within {START_SECONDS:.0f} s"
                )
            self.tick()
        text = answer.read_text(errors="replace")
        try:
            return dict(json.loads(text[text.index("{") :]))
        except ValueError:
            raise RunFailed(f"`flwr {arguments[0]}` gave no answer: {one_line(text)}") from None

    def spawn(self, command: list[str], output: int | IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a program in the run's environment, behind its wall if there is one, in
        its own session.

        The terminal's Ctrl-C must reach this process only; otherwise the run could not
        be stopped gracefully.
        """
        return subprocess.Popen(
            entered(self.wall, command),
            cwd=self.base / "cwd",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

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

    environment: of everything started; the variables that isolate the run override it.
    cpus: per client. poll: called about ten times a second by every method that waits.
    walled: whether all of it starts behind a wall. within: where `base` is made; None:
    among temporary files.
    """

    def __init__(
        self,
        port: int,
        environment: Mapping[str, str],
        cpus: int,
        poll: Callable[[], None],
        walled: bool = False,
        within: Path | None = None,
    ) -> None:
        # Located before the folder is created: a missing program is a user error and
        # must leave nothing behind.
        self.program, flwr = program("flower-superlink"), program("flwr")
        self.port, self.walled = port, walled
        self.process: subprocess.Popen[bytes] | None = None
        self.holder: subprocess.Popen[bytes] | None = None
        self.closed = False
        base = _temporary_folder(within)
        super().__init__(base, _environment(environment, base, flwr.parent, cpus), poll)
        self.log = self.base / "superlink.log"
        (self.base / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "own"\n[superlink.own]\naddress = '
            f'"127.0.0.1:{port}"\ninsecure = true\n'
        )
        self.mark = f"FLWR_HOME={self.environment['FLWR_HOME']}"
        self.guard = Guard(self.mark, self.base)

    def launch(self) -> None:
        """Start the SuperLink without waiting for it. Raises NoWall."""
        if self.walled:
            self._build_wall()
        command = [str(self.program), "--insecure", "--simulation", "--host", "127.0.0.1"]
        # Otherwise Flower would install the app's dependencies, including torch, anew
        # for every run.
        command += ["--port", str(self.port), "--disable-runtime-dependency-installation"]
        with self.log.open("wb") as log:
            self.process = self.spawn(command, log)

    def start(self) -> None:
        """Start the SuperLink if necessary, and wait until it answers. Raises RunFailed
        with the end of its log if it does not, or NoWall.
        """
        if self.process is None:
            self.launch()
        deadline = time.monotonic() + START_SECONDS
        while not answers(lambda: connect(self.wall, self.port, 1.0)):
            self.check_alive()
            if time.monotonic() > deadline:
                raise RunFailed(f"Flower's SuperLink did not answer within {START_SECONDS:.0f} s")
            self.tick()

    def _build_wall(self) -> None:
        path = self.base / "wall.log"
        with path.open("wb") as log:
            holder = self.holder = self.spawn(HOLD, log)
        self.wall = Wall.of(holder.pid, path.read_text, lambda: holder.poll() is None)

    def alive(self) -> bool:
        """Return whether the SuperLink is running."""
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        """Return the log of the SuperLink and its helpers."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self, before: Callable[[], None]) -> None:
        """Call `before`, end all processes and remove the folder, once. Ctrl-C is
        ignored until that is done.
        """
        if self.closed:
            return
        while True:
            try:
                with signals_ignored():
                    before()
                    self._end()
                    self.closed = True
                return
            except KeyboardInterrupt:  # it arrived before the signals were ignored
                continue

    def _end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        if self.holder is not None:
            self.holder.terminate()
            self.holder.wait()
        # Always, even if no process is known: an interrupt may have occurred between
        # its start and the assignment.
        end_marked(self.mark, self.process, LEFTOVER_SECONDS)
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
        (base / name).mkdir()
    return base


def environment_of(
    given: Mapping[str, str], home: Path, programs: Path, cpus: int = 1
) -> dict[str, str]:
    """Return an environment in which Flower's programs find each other and use their
    own `home` and `cpus` threads per process.
    """
    own = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PYTHONUNBUFFERED": "1",  # otherwise the log arrives in blocks
        # Flower starts its helpers by bare name
        "PATH": os.pathsep.join(
            map(str, (make_superexec(home / "programs"), programs, given.get("PATH", os.defpath)))
        ),
    }
    for name in ("NO_PROXY", "no_proxy"):  # Flower's programs communicate over HTTP on this machine
        own[name] = ",".join(filter(None, [given.get(name), "127.0.0.1", "localhost"]))
    # A second thread on a one-CPU worker makes small models many times slower.
    return {**threads(cpus), **given, **own}


def _environment(given: Mapping[str, str], base: Path, programs: Path, cpus: int) -> dict[str, str]:
    ray = {
        "RAY_TMPDIR": str(base / "ray"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # saves two processes that Flower's simulation does not use
        "RAY_prestart_worker_first_driver": "0",
        # otherwise the titles of some Ray processes overwrite the environment that
        # identifies them
        "SPT_NOENV": "1",
    }
    return environment_of(given, base / "home", programs, cpus) | ray
