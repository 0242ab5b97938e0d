"""Run one Flower simulation in isolation, with a reliable outcome.

`flwr run` exits with 0 even if the simulation has died. It can only be waited for by
streaming its log, and the run continues after Ctrl-C. Here a run gets its own SuperLink
(`superlink.py`). Its log is passed on line by line, its status is read from `flwr
list`, and no process or folder is left behind.
"""

import contextlib
import math
import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedapps.engines.app_folder import copy_app
from fedapps.engines.capacity import (
    Machine,
    check_share,
    clients_at_once,
    per_gpu,
    told_share,
    visible_gpus,
)
from fedapps.engines.processes import signals_ignored
from fedapps.engines.superlink import (
    ENDED,
    START_SECONDS,
    STOP_SECONDS,
    SUPEREXEC,
    Connection,
    SuperLink,
    one_line,
)
from fedapps.errors import RunFailed, UserError
from fedapps.extensions.own_code import own_files
from fedapps.strategies.base.flower_private import UNKNOWN_KEY, WRAPPERS
from fedapps.toml_text import Value, quoted_toml

LINGER_SECONDS = 15.0  # grace period for the simulation to end after its ServerApp has ended


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `completed`, `failed` or `interrupted`."""

    status: str
    details: str = ""  # the reason on one line; empty after success


@dataclass(frozen=True)
class Resources:
    """The resources of a simulation's clients, and those that Ray may use.

    nodes: number of virtual clients. ray_cpus, ray_gpus: numbers of CPUs and GPUs of
    this machine that Ray may use; None: all. Tests set ray_gpus to check shares of a
    GPU without having one. cluster, machines: address and machines of a Ray cluster
    that the run joins, instead of starting Ray on this machine.
    """

    nodes: int
    gpus_per_client: float = 0.0
    ray_cpus: int | None = None
    ray_gpus: int | None = None
    cluster: str = ""
    machines: Sequence[Machine] = ()

    def available(self) -> Sequence[Machine]:
        """Return the machines that run clients."""
        if self.cluster:
            return self.machines
        gpus = self.ray_gpus
        if gpus is None:
            gpus = len(visible_gpus()) if self.gpus_per_client else 0
        return [Machine(self.ray_cpus or os.cpu_count() or 1, gpus)]

    def at_once(self) -> int:
        """Return how many clients run at a time."""
        machines = self.available()
        return clients_at_once(machines, told_share(self.gpus_per_client, machines))

    def with_shared_nodes(self) -> "Resources":
        """Return the resources with only as many nodes as work at a time, so that each
        worker gets one message.
        """
        # the number of threads with which Flower feeds its workers
        threads = min(32, (os.cpu_count() or 1) + 4)
        return replace(self, nodes=min(self.nodes, threads, self.at_once()))

    def federation(self) -> str:
        """Return the federation config for `flwr run`."""
        words = {
            "num-supernodes": self.nodes,
            "client-resources-num-cpus": 1,
            "client-resources-num-gpus": told_share(self.gpus_per_client, self.available()),
            "init-args-num-cpus": self.ray_cpus,
            "init-args-num-gpus": self.ray_gpus,
        }
        return " ".join(f"{key}={value}" for key, value in words.items() if value is not None)

    def check(self) -> None:
        """Raise UserError for resources that are not available. Otherwise the run would
        fail later with "ActorPool is empty".
        """
        if share := self.gpus_per_client:
            check_share("gpus-per-client =", share)
        if self.at_once():
            return
        have = " or ".join(
            f"{machine.cpus} CPUs and {machine.gpus} GPUs"
            for machine in dict.fromkeys(self.available())
        )
        where, look = (
            ("a machine of the cluster", "start machines that have it (`ray status`)")
            if self.cluster
            else ("this machine", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES")
        )
        raise UserError(
            f"a client with 1 CPU and gpus-per-client = {share:g} does not fit: {where} has "
            f"{have}: choose less, or {look}"
        )

    def remark(self) -> str:
        """Return what to say if GPUs have a rest that no client can use, else ""."""
        share, machines = self.gpus_per_client, self.available()
        gpus = max(machine.gpus for machine in machines)
        if not 0 < share < 1 or int(gpus / share + 1e-6) <= gpus * per_gpu(share):
            return ""
        return (
            f"gpus-per-client = {share:g}: clients share one GPU, never two, so {per_gpu(share)} "
            f"fit on each GPU, and {self.at_once()} run at a time"
        )


@dataclass(frozen=True)
class Following:
    """How a run is followed.

    log_path: the run's log is appended to this file, line by line. poll: called about
    ten times per second while waiting. ended: returns the final status recorded by the
    ServerApp, `completed` or `failed`, or None while it is running. After its end,
    Flower's simulation waits for every client to return, forever if one hangs, so it is
    stopped after LINGER_SECONDS. written: returns whether a completed run has written
    everything. Flower and Ray, which take seconds to end, are then stopped at once.
    """

    log_path: Path
    poll: Callable[[], None] = lambda: None
    ended: Callable[[], str | None] = lambda: None
    written: Callable[[], bool] = lambda: False


def run_simulation(
    app_dir: Path | None,
    run_config: Mapping[str, Value],
    resources: Resources,
    following: Following,
    *,
    superlink: SuperLink | None = None,
) -> Outcome:
    """Run a Flower app with virtual clients and wait for it to end.

    app_dir: the folder with the app's pyproject.toml; None: this project's app.
    run_config: flat dotted keys, each present in the app's `[tool.flwr.app.config]`.
    superlink: one that may already be starting, for this run alone. With a cluster, the
    run's temporary folder with the app is made next to the log, in a folder that all
    machines of the cluster share.

    KeyboardInterrupt stops the run and is reported as status `interrupted`; it is not
    raised again. Raises UserError before anything is started: no such GPU, too few
    CPUs, Flower not installed.
    """
    cluster, log_path = resources.cluster, following.log_path
    resources.check()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    superlink = superlink or SuperLink(
        cluster=cluster, within=log_path.parent.absolute() if cluster else None
    )
    superlink.poll = following.poll
    if cluster:  # let Flower and Ray end normally, so that the cluster is left clean
        following = replace(following, written=lambda: False)

    def app() -> Path:
        superlink.start()
        return app_dir or copy_app(superlink.base / "app", own_files(run_config), run_config)

    try:
        return SubmittedRun(superlink, following).execute(app, run_config, resources.federation())
    finally:
        superlink.close()


def last_error(lines: list[str]) -> str | None:
    """Return the last exception in a log's tracebacks as `Name: message`, or None.
    Flower's wrappers are skipped.
    """
    exceptions: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            if not line.endswith(WRAPPERS):
                exceptions.append(line)
    # without the module's name, as in "fedapps.errors.RunFailed: ..."
    return re.sub(r"^[\w.]*\.(?=\w+(:|$))", "", exceptions[-1]) if exceptions else None


class SubmittedRun:
    """One run on a SuperLink: submits it, follows its log and determines its
    outcome.
    """

    def __init__(self, superlink: Connection, following: Following) -> None:
        self.superlink, self.following, self.log_path = superlink, following, following.log_path
        # the ServerApp's status, if the simulation was stopped before its end
        self.lingered: str | None = None
        self.run_id: str | None = None
        self.reader: threading.Thread | None = None
        self.lines: list[str] = []

    def execute(
        self,
        app: Callable[[], Path],
        run_config: Mapping[str, Value],
        federation: str | None = None,
    ) -> Outcome:
        """Submit the run of the app in the folder that ``app()`` returns, follow it and
        return its outcome. Ctrl-C stops it. `federation`: the federation config of a
        simulation.
        """
        try:
            self.submit(app(), run_config, federation)
            self.follow()
            return self.with_reason(self.outcome())
        except KeyboardInterrupt:
            with signals_ignored():
                self.stop()
            return Outcome("interrupted", "stopped before the end")
        except RunFailed as error:
            # it may contain the reason, and its folder will be removed
            end = self.superlink.log_text()[-5000:]
            self.note(f"--- the end of the SuperLink's log ---\n{end}")
            return Outcome("failed", str(error))

    def submit(
        self, app_dir: Path, run_config: Mapping[str, Value], federation: str | None
    ) -> None:
        """Submit the app to the SuperLink. Raises RunFailed with the reason if it is
        not accepted.
        """
        settings = self.superlink.base / "run-config.toml"
        settings.write_text(quoted_toml(run_config), encoding="utf-8")
        command = ["run", str(app_dir.resolve()), "own"]
        if federation is not None:
            command += ["--federation-config", federation]
        if run_config:
            command += ["--run-config", str(settings)]
        answer = self.superlink.ask(*command)
        if not answer.get("success"):
            # Flower only answers "Invalid run configuration."; the reason is in the
            # SuperLink's log.
            reasons = UNKNOWN_KEY.findall(self.superlink.log_text())
            raise RunFailed(one_line(reasons[-1] if reasons else str(answer.get("error-message"))))
        self.run_id = str(answer["run-id"])

    def follow(self) -> None:
        """Pass the run's log on until the run ends."""
        assert self.run_id is not None
        command = [str(self.superlink.flwr), "log", self.run_id, "own", "--stream"]
        stream = self.superlink.spawn(command, subprocess.PIPE)
        arrived: queue.SimpleQueue[str] = queue.SimpleQueue()

        def read() -> None:
            assert stream.stdout is not None
            with stream.stdout:
                for line in stream.stdout:
                    arrived.put(
                        re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace").rstrip("\n"))
                    )

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        started, deadline = False, time.monotonic() + START_SECONDS
        end_seen = math.inf
        while True:
            # checked before the queue is emptied: after the end, nothing is added
            ended = not self.reader.is_alive()
            while not arrived.empty():
                line = arrived.get()
                started = True
                self.lines.append(line)
                self.note(line)
            if ended:
                return
            self.superlink.check_alive()
            if not started and time.monotonic() > deadline:
                raise RunFailed(
                    f"the run did not start within {START_SECONDS:.0f} s; see {self.log_path}"
                )
            if status := self.following.ended():
                end_seen = min(end_seen, time.monotonic())
                if (
                    status == "completed" and self.following.written()
                ) or time.monotonic() > end_seen + LINGER_SECONDS:
                    self.lingered = status
                    stream.kill()  # a SuperLink does not end before its listeners do
                    return
            self.superlink.tick()

    def note(self, text: str) -> None:
        """Append to the log; if the disk is full, the line is dropped and the run
        continues.
        """
        with contextlib.suppress(OSError), self.log_path.open("a", encoding="utf-8") as log:
            log.write(text + "\n")

    def outcome(self) -> Outcome:
        """Return how the run ended, as reported by `flwr list`: exit codes do not
        show it.
        """
        if self.lingered:
            return Outcome(
                self.lingered, last_error(self.lines) or "" if self.lingered != "completed" else ""
            )
        while True:  # the log can end shortly before the status changes
            self.superlink.check_alive()
            run = self.superlink.ask("list", "own", "--run-id", str(self.run_id))["runs"][0]
            if run["status"].startswith("finished"):
                break
            for _ in range(10):
                self.superlink.tick()
        if run["status"] == "finished:completed":
            return Outcome("completed", "")
        if run["status"] == "finished:stopped":
            return Outcome("interrupted", "stopped by `flwr stop`")
        return Outcome("failed", last_error(self.lines) or one_line(run["status-details"]))

    def with_reason(self, outcome: Outcome) -> Outcome:
        """Return the outcome, with its reason if the run ended because Flower's helper
        did.
        """
        before, *ended = ENDED.split(self.superlink.log_text(), maxsplit=1)
        if outcome.status == "completed" or not ended:
            return outcome
        reason = last_error(before.splitlines()) or "it was probably killed"
        return Outcome(
            "failed",
            f"{SUPEREXEC} beside the SuperLink has ended with status {ended[0]} ({reason}), and "
            "the run's process with it: repeat the command with --resume",
        )

    def stop(self) -> None:
        """Stop the run gracefully, within a limited time. Processes that remain end
        with the SuperLink.
        """
        if self.run_id is not None:
            self.superlink.stop_run(self.run_id)
        if self.reader is not None:
            self.reader.join(STOP_SECONDS)  # the log ends when the run has
