"""Run one Flower simulation on a SuperLink of its own, isolated, with a truthful outcome.

`flwr run` alone reuses whatever SuperLink answers on its fixed port, works in that one's folder and environment, and
exits 0 when the simulation has died. Here every run gets a SuperLink on a free loopback port, an empty working
directory (Ray puts it first on its workers' import path), its own Flower home and Ray session folder; the end is
read from `flwr list`; and nothing is left behind, also after Ctrl-C. The home's path doubles as the mark by which
the run's processes are found (`processes.py`).
"""

import contextlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fedapps.errors import RunFailed, UserError
from fedapps.processes import (
    DIE_WITH_PARENT,
    answers,
    checked_port,
    end_marked,
    free_port,
    program,
    signals_ignored,
)

Value = bool | int | float | str

TICK = 0.1  # seconds between two calls of `poll`
START_SECONDS = 120.0  # for the SuperLink to answer, for a submission, for the run's first line of log
STOP_SECONDS = 10.0  # for each polite step of ending, before the next less polite one
PACKAGES = ("algorithms", "strategies", "clients", "fedapps")
# A unix socket's path may have 107 characters and Ray adds about 70 to its folder: beyond this, /tmp is used.
LONGEST_TEMP_DIR = 24
# Flower wraps the cause of a failure in these; they tell the reader nothing.
WRAPPERS = ("An error was encountered. Ending simulation.", "Simulation Runtime crashed.")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `completed`, `failed`, `rejected` (never started) or `interrupted`."""

    status: str
    details: str  # one line; the reason, empty after success
    log: Path | None


def run_simulation(
    app_dir: Path,
    run_config: Mapping[str, Value],
    *,
    num_nodes: int,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    ray_cpus: int | None = None,
    port: int | None = None,
    log_path: Path,
    on_line: Callable[[str], None] | None = None,
    poll: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the Flower app in `app_dir` with `num_nodes` virtual clients and wait for its end.

    run_config: flat dotted keys, each present in the app's `[tool.flwr.app.config]`.
    ray_cpus: CPUs that Ray believes in; None: those there are. ray_cpus / cpus_per_client clients run at a time.
    port: of the SuperLink, on the loopback interface; None: a free one.
    log_path: the run's log is appended here, line by line; `on_line` gets every line as well.
    poll: called about ten times a second while waiting.
    env: added to this process's environment. A RAY_ADDRESS set by the user is kept: it joins that cluster.

    KeyboardInterrupt stops the run and is answered by status `interrupted`, it is not raised again.
    Raises UserError before anything is started: no such GPU, too few CPUs, port taken, Flower not installed.
    """
    environment = os.environ | dict(env or {})
    _check_resources(cpus_per_client, gpus_per_client, ray_cpus, environment)
    chosen = free_port() if port is None else checked_port(port)
    federation = (
        f"num-supernodes={num_nodes} client-resources-num-cpus={cpus_per_client} "
        f"client-resources-num-gpus={float(gpus_per_client)}"
    )
    if ray_cpus is not None:
        federation += f" init-args-num-cpus={ray_cpus}"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    run = _Run(chosen, environment, cpus_per_client, log_path, on_line or _ignore, poll or _ignore)
    try:
        run.start_superlink()
        run.submit(app_dir, run_config, federation)
        run.follow()
        return run.outcome()
    except KeyboardInterrupt:
        run.interrupted = True
        return Outcome("interrupted", "stopped before the end", log_path)
    except _Rejected as error:
        return Outcome("rejected", str(error), log_path)
    except RunFailed as error:
        return Outcome("failed", str(error), log_path)
    finally:
        run.close()


@contextlib.contextmanager
def app_folder() -> Iterator[Path]:
    """Yield a folder with this project's Flower app, and only that, for `flwr run`; it is removed at the end.

    A copy, because it works alike from a checkout and from an installed wheel, and Flower, which looks through the
    whole folder and may edit its pyproject.toml, never meets virtual environments, results or the user's files.
    """
    package = Path(__file__).resolve().parent
    inside = package / "pyproject.toml"  # a wheel carries it here
    with tempfile.TemporaryDirectory(prefix="fedapps-app-") as temporary:
        folder = Path(temporary) / "fedapps"  # Flower wants letters, digits and hyphens in the name
        folder.mkdir()
        shutil.copy(inside if inside.exists() else package.parent / "pyproject.toml", folder)
        for name in PACKAGES:
            for source in (package.parent / name).rglob("*.py"):
                target = folder / source.relative_to(package.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        yield folder


def to_toml(values: Mapping[str, Value]) -> str:
    """Return `values` as TOML, one line per key; a dotted key is quoted, which Flower flattens to the same key."""
    return "".join(f"{_toml_string(key)} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))  # float() first: NumPy's scalars have another repr
    return _toml_string(value)


def _toml_string(text: str) -> str:
    # JSON's escapes are a subset of TOML's, but TOML also forbids a bare DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Rejected(Exception):
    """Flower did not accept the submission."""


class _Run:
    """The processes and folders of one run."""

    def __init__(
        self,
        port: int,
        environment: Mapping[str, str],
        cpus: int,
        log_path: Path,
        on_line: Callable[[str], None],
        poll: Callable[[], None],
    ) -> None:
        # Found before the folder is made: a missing program is the user's to mend and leaves nothing.
        self.superlink_program, self.flwr = program("flower-superlink"), program("flwr")
        self.port, self.log_path, self.on_line, self.poll = port, log_path, on_line, poll
        self.interrupted = False
        self.run_id: str | None = None
        self.superlink: subprocess.Popen[bytes] | None = None
        self.reader: threading.Thread | None = None
        self.lines: list[str] = []
        self.base = _temporary_folder()
        self.superlink_log = self.base / "superlink.log"
        (self.base / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self.environment = _environment(environment, self.base, self.flwr.parent, cpus)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(self.port)]
        # Flower would otherwise install torch again, for every run.
        options += ["--disable-runtime-dependency-installation"]
        with self.superlink_log.open("wb") as log:
            self.superlink = self._start([sys.executable, "-c", DIE_WITH_PARENT, str(self.superlink_program), *options], log)
        deadline = time.monotonic() + START_SECONDS
        while not answers(self.port):
            if self.superlink.poll() is not None:
                raise RunFailed(f"Flower's SuperLink did not start: {self._superlink_reason()}")
            if time.monotonic() > deadline:
                raise RunFailed(f"Flower's SuperLink did not answer within {START_SECONDS:.0f} s")
            self._tick()

    def submit(self, app_dir: Path, run_config: Mapping[str, Value], federation: str) -> None:
        """Hand the app to the SuperLink; sets `run_id`. Raises _Rejected with the reason."""
        settings = self.base / "run-config.toml"
        settings.write_text(to_toml(run_config), encoding="utf-8")
        command = ["run", str(app_dir.resolve()), "own", "--federation-config", federation, "--format", "json"]
        if run_config:
            command += ["--run-config", str(settings)]
        answer = self._ask(command)
        if not answer.get("success"):
            reason = self._rejection() or str(answer.get("error-message", "no reason was given"))
            raise _Rejected(_one_line(reason))
        self.run_id = str(answer["run-id"])

    def follow(self) -> None:
        """Pass the run's log on until its end."""
        assert self.run_id is not None
        stream = self._start([str(self.flwr), "log", self.run_id, "own", "--stream"], subprocess.PIPE)
        arrived: queue.SimpleQueue[str] = queue.SimpleQueue()

        def read() -> None:
            assert stream.stdout is not None
            for line in stream.stdout:
                arrived.put(re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace").rstrip("\n")))

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        deadline = time.monotonic() + START_SECONDS
        with self.log_path.open("a", encoding="utf-8") as log:
            while True:
                ended = not self.reader.is_alive()  # asked first: then the queue below is complete
                while not arrived.empty():
                    line = arrived.get()
                    self.lines.append(line)
                    log.write(line + "\n")
                    log.flush()
                    self.on_line(line)
                if ended:
                    return
                self._check_alive()
                started = any("Starting Flower Simulation" in line for line in self.lines[:20])
                if not started and time.monotonic() > deadline:
                    raise RunFailed(f"the run did not start within {START_SECONDS:.0f} s: {self._superlink_reason()}")
                self._tick()

    def outcome(self) -> Outcome:
        """Ask Flower how the run ended; exit codes do not tell."""
        while True:  # the log can end a moment before the status changes, or break off
            self._check_alive()
            run = self._ask(["list", "own", "--run-id", str(self.run_id), "--format", "json"])["runs"][0]
            if run["status"].startswith("finished"):
                break
            for _ in range(10):
                self._tick()
        if run["status"] == "finished:completed":
            return Outcome("completed", "", self.log_path)
        if run["status"] == "finished:stopped":
            return Outcome("interrupted", "stopped from outside", self.log_path)
        return Outcome("failed", last_error(self.lines) or _one_line(run["status-details"]), self.log_path)

    def close(self) -> None:
        """End everything this run has started and remove its folders. Further Ctrl-C's wait until that is done."""
        while True:
            try:
                with signals_ignored():
                    self._end()
                return
            except KeyboardInterrupt:  # one that came before the signals were ignored
                continue

    def _end(self) -> None:
        if self.interrupted and self.run_id is not None and self.superlink is not None:
            if self.superlink.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    stop = [str(self.flwr), "stop", self.run_id, "own"]
                    self._start(stop, subprocess.DEVNULL).wait(STOP_SECONDS)
            if self.reader is not None:  # its end is the run's end
                self.reader.join(STOP_SECONDS)
        if self.superlink is not None:
            self.superlink.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.superlink.wait(STOP_SECONDS)
        # Always, even if no process is known: an interrupt may have come between its start and the assignment.
        end_marked(f"FLWR_HOME={self.environment['FLWR_HOME']}", self.superlink, STOP_SECONDS)
        shutil.rmtree(self.base, ignore_errors=True)

    def _start(self, command: list[str], output: int | IO[bytes]) -> "subprocess.Popen[bytes]":
        # In a session of its own: the terminal's Ctrl-C must reach us alone, or the run could not be stopped in order.
        return subprocess.Popen(
            command,
            cwd=self.base / "cwd",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _ask(self, arguments: list[str]) -> dict[str, Any]:
        """Return the JSON answer of one `flwr` command."""
        answer = self.base / "answer.json"
        with answer.open("wb") as output:
            process = self._start([str(self.flwr), *arguments], output)
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise RunFailed(f"`flwr {arguments[0]}` did not answer within {START_SECONDS:.0f} s")
            self._tick()
        text = answer.read_text(errors="replace")
        try:
            return dict(json.loads(text[text.index("{") :]))
        except ValueError:
            raise RunFailed(f"`flwr {arguments[0]}` gave no answer: {_one_line(text)}") from None

    def _tick(self) -> None:
        self.poll()
        time.sleep(TICK)

    def _check_alive(self) -> None:
        if self.superlink is None or self.superlink.poll() is not None:
            raise RunFailed(f"Flower's SuperLink ended during the run: {self._superlink_reason()}")

    def _superlink_reason(self) -> str:
        text = self.superlink_log.read_text(errors="replace")
        with self.log_path.open("a", encoding="utf-8") as log:
            log.write(f"--- the end of the SuperLink's log ---\n{text[-5000:]}\n")
        return last_error(text.splitlines()) or _one_line(text) or "it left no log"

    def _rejection(self) -> str | None:
        # Flower answers "Invalid run configuration." and writes the reason into the SuperLink's log only.
        found = re.findall(r"Key '[^']*' is not present[^\n]*", self.superlink_log.read_text(errors="replace"))
        return found[-1] if found else None


def _check_resources(cpus: int, gpus: float, ray_cpus: int | None, environment: Mapping[str, str]) -> None:
    """Raise UserError for what would otherwise end, after Ray's start, in "ActorPool is empty"."""
    if environment.get("RAY_ADDRESS", "local") != "local":  # the cluster's resources count, not this machine's
        if ray_cpus is not None:
            raise UserError(f"ray-cpus = {ray_cpus}, but RAY_ADDRESS joins a cluster with its own: leave out one of them")
        return
    available = ray_cpus or os.cpu_count() or 1
    if not 1 <= cpus <= available:
        raise UserError(f"cpus-per-client = {cpus}, but {available} CPUs are there: choose 1..{available}")
    if gpus > 0:
        import torch  # late: it takes seconds, and a run on CPUs does not need it here

        count = torch.cuda.device_count()
        if count == 0:
            raise UserError(
                f"gpus-per-client = {gpus}, but no GPU was found: choose 0, or see `nvidia-smi` and CUDA_VISIBLE_DEVICES"
            )
        if gpus > count:
            raise UserError(f"gpus-per-client = {gpus}, but {count} GPUs were found: choose at most {count}")


def _temporary_folder() -> Path:
    temporary = tempfile.gettempdir()
    if len(temporary) > LONGEST_TEMP_DIR and os.access("/tmp", os.W_OK):
        temporary = "/tmp"
    base = Path(tempfile.mkdtemp(prefix="fl-", dir=temporary))
    for name in ("home", "cwd", "ray"):
        (base / name).mkdir()
    return base


def _environment(given: Mapping[str, str], base: Path, programs: Path, cpus: int) -> dict[str, str]:
    """Return the environment of everything the run starts."""
    own = {
        "FLWR_HOME": str(base / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "RAY_TMPDIR": str(base / "ray"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "SPT_NOENV": "1",  # or some of Ray's processes overwrite the environment that marks them with their title
        "PYTHONUNBUFFERED": "1",  # or the log would arrive in blocks
        # The SuperLink starts its helpers by bare name.
        "PATH": f"{programs}{os.pathsep}{given.get('PATH', os.defpath)}",
    }
    for name in ("NO_PROXY", "no_proxy"):  # Flower's programs talk to each other over HTTP on this machine
        own[name] = ",".join(filter(None, [given.get(name), "127.0.0.1", "localhost"]))
    # A second thread on a one-CPU worker makes small models many times slower.
    threads = {name: str(cpus) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**threads, **given, **own}


def last_error(lines: list[str]) -> str | None:
    """Return the last line of a log that names an exception, as `Name: message`; None if there is none."""
    found: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            if not line.endswith(WRAPPERS):
                found.append(line)
    # The module of the exception is noise: "fedapps.errors.RunFailed: ..." reads better without.
    return re.sub(r"^[\w.]*\.(?=\w+(:|$))", "", found[-1]) if found else None


def _one_line(text: str) -> str:
    return " ".join(text.split())[-500:]


def _ignore(*_: object) -> None:
    pass
