"""Runs with a fault in every other round. Counts what is lost, bad replies that were
used and good replies that were skipped.

    python benchmarks/soak.py [--engine inline] [--rounds 1000] [--seed 0]
    python benchmarks/soak.py --engine deployment [--rounds 100]

FedAvg on digits, started by the command. ``inline``: five clients, a checkpoint every
five rounds. ``deployment``: a SuperLink and three SuperNodes on this machine, a
checkpoint every round; clients take a step without training. The seed determines the
client, the place and the order of the faults:

- client: the process that computes the reply is killed; inline, the client raises.
- node: the SuperNode is killed and started again; inline, the node is gone for the
  round and comes back under another number.
- late: the reply comes after the timeout; inline, with the replies of the next round.
- nan, shape, huge, weight: one NaN among a model's values; another shape; a value of
  9e14; ``num-examples`` = 1e15, which ``max-weight`` caps.
- words: an error in the words of a dead worker of Ray.
- metrics: a reply with 8 MB of metrics. policy: the site refuses the method.
- duplicate: another node claims to be this client.
- disk: until the next round (SuperNodes: for some seconds) no file may grow beyond a
  few bytes, by RLIMIT_FSIZE: a full disk, EFBIG for ENOSPC. The limit hits what writes
  the results folder; sites and SuperLink, whose disks are others, keep theirs.
- restart: the SuperLink is killed, with the ServerApp; inline the process of the run,
  before one of its next file operations, drawn at random. Then the run is resumed.
- command: the command is killed (SIGKILL) while Flower's run goes on, and the run is
  resumed; inline, a second command resumes the run at the same time.

A run that ends early is resumed (``--resume``) until it is complete. False success: a
round used a bad reply or did not cap one, a round is missing from a run that claims to
be complete, or a model is not finite. Rounds that are recorded twice or out of order
show a second writer. False failure: a client that did nothing wrong
was skipped. The difference compares the final model with a clean one, computed without
the strategy, the round loop and the engine: every round trains only the clients that
the record lists as used, and the mean of their models is the next model.
"""

import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from safetensors.numpy import load_file

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import faults
from benchmarks.common import options, show
from benchmarks.faults import KINDS, NO_LIMIT, fault, file_limit, walk
from fedapps.algorithms.common.averaging import weighted_average
from fedapps.algorithms.contract.wire import read
from fedapps.commands import parser as cli
from fedapps.deployment import local
from fedapps.deployment.certificates import CA, make_site_key
from fedapps.deployment.local import Deployment, Site
from fedapps.engines import app_folder
from fedapps.engines.inline import InlineGrid
from fedapps.engines.processes import free_port, marked
from fedapps.engines.superlink import end_programs
from fedapps.errors import RunFailed, UserError
from fedapps.records.rounds import read_rounds
from fedapps.runs import execution
from fedapps.runs.assembly import build_task
from fedapps.runs.client_app import app
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.messages import arrays_of, metrics_of, to_record
from fedapps.toml_text import read_toml

CLIENTS = {"inline": 5, "deployment": 3}
EVERY = {"inline": 5, "deployment": 1}
ROUNDS = {"inline": 1000, "deployment": 100}
JOB = [
    "method=fedavg",
    "model.name=logistic",
    "data.partition=iid",
    "train.local-epochs=1",
    "evaluate-every=0",
    "clients-per-round=0",
    "max-weight=10",
    "max-relative-update=0",
    "timeout=45",
]
LEFT_OUT = ("client", "node", "late", "nan", "shape", "huge", "words", "metrics", "policy")
# a site may have answered before it is killed
CERTAIN = {
    "inline": LEFT_OUT,
    "deployment": tuple(kind for kind in LEFT_OUT if kind not in ("node", "late")),
}
COLUMNS = (
    "times",
    "left out or capped",
    "false successes",
    "false failures",
    "lost on the way back",
    "rounds repeated",
    "doubled or out of order",
)


@dataclass
class Soak:
    """A soak and what is counted in it; ``allowed``: client -> rounds in which it may
    be missing, since its site is on its way back.
    """

    engine: str
    rounds: int
    seed: int
    work: Path
    counts: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter() for kind in ("none", *KINDS)}
    )
    allowed: dict[int, set[int]] = field(default_factory=dict)
    starts: int = 0
    ended: str = ""
    difference: float = math.nan

    @property
    def out(self) -> Path:
        """The results folder."""
        return self.work / "run"

    def fault(self, number: int) -> tuple[str, int]:
        """Return kind and client of the fault of a round."""
        return fault(self.seed, number, CLIENTS[self.engine])

    # --- running ----------------------------------------------------------------------

    def start(self, *engine: str) -> Any:
        """Start the command, or resume the run in the folder."""
        job = [
            *JOB,
            f"num-rounds={self.rounds}",
            f"seed={self.seed}",
            f"num-clients={CLIENTS[self.engine]}",
            f"checkpoint-every={EVERY[self.engine]}",
        ]
        again = (self.out / "settings.toml").exists()
        arguments = [
            "run",
            *(["--resume"] if again else job),
            "--engine",
            self.engine,
            *engine,
            "--out",
            str(self.out),
        ]
        kind = multiprocessing.get_context("fork" if self.engine == "inline" else "spawn")
        process = kind.Process(target=command, args=(self.engine, arguments))
        process.start()
        self.starts += 1
        return process

    def over(self, code: int | None, hit: int) -> bool:
        """Return whether the run is over; else count the rounds that are to be
        repeated, of round ``hit`` or of the record's last.
        """
        if code == 0:
            self.ended = "completed"
        elif self.starts > 2 + self.rounds // 4:
            self.ended = f"given up after {self.starts} starts"
        elif code == 2:
            self.ended = "refused to be gone on with"
        else:
            done = max(
                (
                    int(path.name)
                    for path in (self.out / "checkpoint").glob("*")
                    if path.name.isdigit()
                ),
                default=0,
            )
            last = max(hit, *(row["round"] for row in read_rounds(self.out)), 0)
            killed = {"inline": "restart", "deployment": "command"}[self.engine]
            kind = killed if code == -9 else self.fault(hit)[0] or "none"
            self.counts[kind]["rounds repeated"] += last - done
            print(
                f"start {self.starts} ended with {code} in round {last}, {kind}; {done} done",
                file=sys.stderr,
            )
        return bool(self.ended)

    def inline(self) -> None:
        """Run in child processes."""

        os.environ["SOAK_WORK"] = str(self.work)
        while True:
            process = self.start()
            process.join()
            if self.over(
                process.exitcode,
                max((int(p.name.partition("-")[2]) for p in self.work.glob("once-*")), default=0),
            ):
                return

    def deployment(self) -> None:
        """Run on SuperNodes."""
        sites = {
            f"site-{i}": {"partition-id": i, "num-partitions": CLIENTS["deployment"]}
            for i in range(CLIENTS["deployment"])
        }
        with Deployment.create(self.work / "deployment", sites) as deployment:
            deployment.start()
            attacker = Attacker(deployment, self.out)
            self.allowed = attacker.away
            process, met = self.start("--deployment", str(deployment.folder)), 0
            while True:
                last = max((row["round"] for row in read_rounds(self.out)), default=0)
                attacker.after(last)
                if met <= last and (self.out / "settings.toml").exists():
                    met = last + 1
                    attacker.act(met, *self.fault(met), process.pid)
                if not process.is_alive():
                    attacker.settle()
                    if self.over(process.exitcode, attacker.hit):
                        return
                    deployment.start()
                    process = self.start("--deployment", str(deployment.folder))
                time.sleep(0.2)

    # --- judging ----------------------------------------------------------------------

    def judge(self) -> None:
        """Count what was right and wrong in the record of the rounds."""
        rows = read_rounds(self.out)
        times_recorded, last = Counter(row["round"] for row in rows), "none"
        for number in range(1, self.rounds + 1):
            kind, _ = self.fault(number)
            self.counts[kind or "none"]["times"] += 1
            self.counts[kind or "none"]["false successes"] += (
                times_recorded[number] != 1 and self.ended == "completed"
            )
        before = 0
        for row in rows:
            kind, victim = self.fault(row["round"])
            last = kind or last
            self.counts[last]["doubled or out of order"] += row["round"] <= before
            before = row["round"]
            used, capped = set(row["clients"]), set(row.get("capped", ()))
            missing = set(range(CLIENTS[self.engine])) - used
            if kind in LEFT_OUT:
                self.counts[kind]["left out or capped"] += victim in missing
                self.counts[kind]["false successes"] += (
                    victim in used and kind in CERTAIN[self.engine]
                )
            elif kind == "weight":
                self.counts[kind]["left out or capped"] += capped == {victim}
                self.counts[kind]["false successes"] += capped != {victim} and victim in used
            for client in missing - ({victim} if kind in LEFT_OUT else set()):
                word = (
                    "lost on the way back"
                    if row["round"] in self.allowed.get(client, ())
                    else "false failures"
                )
                self.counts[kind or last][word] += 1
        model = (
            load_file(self.out / "model.safetensors")
            if (self.out / "model.safetensors").exists()
            else {}
        )
        if self.ended == "completed":
            clean = self.clean(rows)
            self.counts["none"]["false successes"] += not model or not all(
                np.isfinite(a).all() for a in model.values()
            )
            self.difference = (
                max(float(np.abs(model[name] - array).max()) for name, array in clean.items())
                if model
                else math.inf
            )

    def clean(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the model of rounds that ask only the clients which ``rows`` name as
        used.
        """
        stored = {
            key: value
            for key, value in read_toml(self.out / "settings.toml").items()
            if not key.startswith("versions.")
        }
        settings = read_settings(stored | {"out": str(self.work / "clean")})
        grid, model = (
            InlineGrid(app, settings.num_clients, settings.flat()),
            build_task(settings).initial_arrays(),
        )
        config: dict[str, Any] = {
            "seed": settings.seed,
            "first-round": 1,
            "checkpoint-round": 0,
            **settings.train.to_config(),
        }
        for row in rows:
            training_config = ConfigRecord(
                config | {"server-round": row["round"], "num-rounds": self.rounds}
            )
            content = RecordDict(
                {"arrays": to_record(list(model), list(model.values())), "config": training_config}
            )
            messages = [Message(content, 1000 + i, MessageType.TRAIN) for i in row["clients"]]
            if self.engine == "inline":
                replies = [grid.send_and_receive([message])[0].content for message in messages]
            else:
                replies = [
                    walk(message, grid.contexts[message.metadata.dst_node_id]).content
                    for message in messages
                ]
            weights = [int(metrics_of(reply)["num-examples"]) for reply in replies]
            # its own weight is still honest here, as is the median with it in its place
            for client in row.get("capped", ()):
                others = [
                    weight for i, weight in zip(row["clients"], weights, strict=True) if i != client
                ]
                weights[row["clients"].index(client)] = 10 * statistics.median_low(
                    [*others, 10**15]
                )
            models = [[read(array) for array in arrays_of(reply)[0].values()] for reply in replies]
            model = dict(zip(model, weighted_average(models, weights), strict=True))
        return model

    def show(self) -> None:
        """Print the counts, and the lines about the run as a whole."""
        total = sum(self.counts.values(), Counter())
        rows = [*self.counts.items(), ("all", total)]
        cells = [(name, *(counts[column] for column in COLUMNS)) for name, counts in rows]
        show(f"{self.engine}, {self.rounds} rounds, seed {self.seed}", ("fault", *COLUMNS), cells)
        print(f"\n{self.starts} starts; the run {self.ended}", end="; ")
        print(f"difference from the clean model: {self.difference:.3g}")


# --- the faults of a deployment -------------------------------------------------------

# how long a disk is full, and how long a duplicate at most stays
FULL_SECONDS, DOUBLE_SECONDS = 12, 40


class Attacker:
    """Attacks the processes of a deployment while the run goes on."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self.deployment, self.folder = deployment, folder
        self.sites = list(deployment.sites.values())
        self.doubles: list[Site] = []
        for site in self.sites:  # with a key of their own, since a key is a node
            double = Site(deployment, f"double-{site.name}", site.config, free_port())
            make_site_key(double.folder / "key")
            shutil.copy(deployment.certificates / CA, double.folder)
            deployment.sites[double.name] = double
            self.doubles.append(double)
        deployment.register()
        for double in self.doubles:
            del deployment.sites[double.name]
        self.threads: list[threading.Thread] = []
        self.hung: dict[int, list[int]] = {}  # by the round in which they hang
        self.away: dict[int, set[int]] = {}  # client -> rounds in which it may be missing
        self.hit = 0  # the round in which the SuperLink was killed last

    def act(self, number: int, kind: str, victim: int, process: int) -> None:
        """Cause the fault of round ``number``, which has just begun."""
        site = self.sites[victim]
        self.away.setdefault(victim, set()).update(
            {number + 1, number + 2} if kind in ("client", "late", "node") else ()
        )
        if kind == "node":
            site.kill()
            self._beside(self._come_back, site, victim, number)
        elif kind == "late":
            self.hung[number] = marked(site.mark)
            for one in self.hung[number]:
                os.kill(one, signal.SIGSTOP)
        elif kind == "duplicate":
            self._beside(self._double, self.doubles[victim])
        elif kind == "disk":
            self._beside(self._fill, [process, *self._server()])
        elif kind == "restart":
            self.settle()
            self.hit = len(read_rounds(self.folder)) + 1
            self.deployment.superlink.kill()
        elif kind == "command":
            self.hit = len(read_rounds(self.folder)) + 1
            os.kill(process, signal.SIGKILL)

    def after(self, number: int) -> None:
        """Continue the processes that hung in rounds up to ``number``."""
        for one in [
            one for hung in list(self.hung) if hung <= number for one in self.hung.pop(hung)
        ]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)

    def settle(self) -> None:
        """Wait until all attacked processes are back."""
        self.after(10**9)
        for thread in self.threads:
            thread.join()

    def _beside(self, work: Any, *arguments: Any) -> None:
        self.threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self.threads[-1].start()

    def _come_back(self, site: Site, victim: int, number: int) -> None:

        for _ in range(10):
            try:
                site.start()
                break
            except (
                RunFailed,
                UserError,
            ):  # as long as the SuperLink believes that the old one is alive
                site.kill()
                time.sleep(3)
        self.away[victim].update(range(number + 1, len(read_rounds(self.folder)) + 4))

    def _double(self, double: Site) -> None:
        before, deadline = said_twice(self.folder), time.monotonic() + DOUBLE_SECONDS
        double.start()
        while said_twice(self.folder) == before and time.monotonic() < deadline:
            time.sleep(0.5)
        end_programs([double])

    def _fill(self, processes: list[int]) -> None:
        for limit in (0, NO_LIMIT):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    file_limit(limit, process)
            time.sleep(FULL_SECONDS if limit == 0 else 0)

    def _server(self) -> list[int]:
        processes = marked(self.deployment.superlink.mark)
        return [
            one
            for one in processes
            if b"flwr-serverapp" in Path(f"/proc/{one}/cmdline").read_bytes()
        ]


def said_twice(folder: Path) -> int:
    """Return how often the log reports a duplicate."""
    return (
        (folder / "run.log").read_text(errors="replace").count("two nodes say that they are client")
    )


# --- the command ----------------------------------------------------------------------


def faulty_copy(folder: Path, *more: Any) -> Path:
    """Copy the app (``copy_app``) with the faults of clients in it."""
    copy = app_folder.copy_app(folder, *more)
    shutil.copy(faults.__file__, copy / "fedapps")
    with (copy / "fedapps" / "runs" / "client_app.py").open("a") as file:
        file.write("\nfrom fedapps.faults import Faulty\n\napp = Faulty(app)\n")
    return copy


def command(engine: str, arguments: list[str]) -> None:
    """Run ``fedapps``, with the faults of clients in its app; run.log has what it
    says.
    """
    if engine == "inline":
        execution.InlineGrid = faults.FaultyGrid  # type: ignore[misc]
        arguments = [*arguments, "--workers", "1"]  # clients run in the faulty grid
    local.copy_app = faulty_copy  # type: ignore[attr-defined]
    with open(os.devnull, "w") as sys.stdout, contextlib.redirect_stderr(sys.stdout):
        sys.exit(cli.main(arguments))


def main() -> None:
    """Run, judge and print."""
    known = {"--engine": "inline", "--rounds": 0, "--seed": 0, "--keep": ""}  # folder to keep
    given = options(__doc__, known)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        work, rounds = Path(given.keep or scratch).absolute(), given.rounds or ROUNDS[given.engine]
        work.mkdir(parents=True, exist_ok=True)
        soak = Soak(given.engine, rounds, given.seed, work)
        soak.inline() if given.engine == "inline" else soak.deployment()
        soak.judge()
        soak.show()
    bad = ("false successes", "false failures", "doubled or out of order")
    wrong = sum(counts[column] for counts in soak.counts.values() for column in bad)
    sys.exit(wrong > 0 or soak.ended != "completed" or not soak.difference <= 1e-6)


if __name__ == "__main__":
    main()
