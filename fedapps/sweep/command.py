"""`fedapps sweep`: runs a grid of settings in parallel, resumable, and writes tables, plots and a report.

The results folder holds ``cells/`` (one results folder per run), ``table.csv``, ``table.md``, ``plots/`` and ``report.html``. Running
the same file again skips the finished runs and continues with the others.
"""

import argparse
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fedapps.engines.cluster import address_of, checked_cluster
from fedapps.errors import INTERRUPTED, RunFailed, UserError
from fedapps.prepare import checked, data_paths, prepare_folder
from fedapps.progress import RoundReader
from fedapps.results.reader import read_run
from fedapps.results.writer import FREE, set_status, status_of
from fedapps.settings import default_config, read_settings
from fedapps.sweep.grid import RESERVED
from fedapps.sweep.page import write_page
from fedapps.sweep.plan import Plan, read_plan
from fedapps.sweep.pool import Ended, PlannedRun, finished, run_all
from fedapps.sweep.tables import Results
from fedapps.toml_text import read_toml

_POLL = 1.0  # seconds between polls of the runs' folders


def sweep(arguments: argparse.Namespace) -> int:
    """Run `fedapps sweep` and return the exit status."""
    try:
        return _sweep(arguments)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED


def _sweep(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 0:
        raise UserError(f"--jobs {arguments.jobs}: choose 1 or more, or 0 for as many as there are cores")
    if arguments.gpus_per_client and arguments.engine == "inline":
        raise UserError("--gpus-per-client is for --engine ray: choose device=cuda with --engine inline")
    if arguments.jobs and arguments.engine == "ray":
        raise UserError("--jobs is for --engine inline: Ray runs the clients of one run in parallel, one run after the other")
    if arguments.jobs and arguments.ray_address:
        raise UserError("--jobs is for this machine: the cluster of --ray-address runs as many at a time as it has CPUs")
    name = "-".join(filter(None, ("sweep", arguments.file.stem, arguments.scale)))
    out = (arguments.out or Path("results") / name).expanduser().absolute()
    plan = read_plan(arguments.file, arguments.settings, arguments.scale, out)
    if arguments.dry_run:
        return show_plan(plan)
    check_out(out)
    missing = check_runs([point.run for point in plan.points if not is_done(point.run)])
    (out / "cells").mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(out):
        failed = run_missing(plan, missing, arguments)
        write_results(plan, out, failed)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plan.points)} runs: see above, mend, and start again; what is finished is kept")
    return 0


def run_missing(plan: Plan, missing: Sequence[PlannedRun], arguments: argparse.Namespace) -> dict[str, str]:
    """Start the unfinished runs, show the progress, and return the reasons of failures by run name."""
    failed: dict[str, str] = {}
    with SweepProgress([point.run for point in plan.points], missing) as progress:
        for ended in started(missing, arguments):
            progress.tell(ended)
            if ended.error:
                failed[ended.run.folder.name] = ended.error
    return failed


def started(missing: Sequence[PlannedRun], arguments: argparse.Namespace) -> Iterator[Ended]:
    """Start the runs in the way that the arguments say; yield each as it ends. Raises ``UserError`` if a cluster lacks something."""
    address, share = address_of(arguments.ray_address), arguments.gpus_per_client
    if arguments.engine == "ray":
        return run_ray(missing, share, address)
    if not arguments.ray_address:
        return run_all(missing, arguments.jobs or cores())
    from fedapps.sweep.cluster_pool import run_on_cluster

    checked_cluster(address, shared_paths(missing))
    return run_on_cluster(missing, address, share)


def shared_paths(runs: Sequence[PlannedRun]) -> list[Path]:
    """Return the paths that all machines of a cluster must see: the sweep's folder, and data that are files."""
    return sorted({run.folder.parent.absolute() for run in runs} | {path for run in runs for path in data_paths(run.config)})


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Lock the folder against a second sweep, which would start the same runs. Raises ``UserError`` if it is locked."""
    with (out / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{out}: a sweep is running there: wait for its end, or choose another --out") from None
        yield


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def show_plan(plan: Plan) -> int:
    """Print the runs and their states; return the exit status 0."""
    for point in plan.points:
        state = "finished" if finished(point.run.folder) else "to run"
        print(f"{point.name}  ({point.run.config['num-rounds']} rounds, {state})")
    done = sum(finished(point.run.folder) for point in plan.points)
    print(f"{len(plan.points)} runs, {done} of them finished; results: {plan.points[0].run.folder.parent.parent}")
    return 0


def is_done(run: PlannedRun) -> bool:
    """Return whether a run is finished. Raises ``UserError`` if its folder was made with other settings."""
    done = finished(run.folder)
    path = run.folder / "settings.toml"
    if path.exists() and (done or (run.folder / "checkpoint").exists()):
        known = default_config()
        before = {key: known[key] for key in run.config if key in known} | read_toml(path)
        for key, value in run.config.items():
            if key not in FREE and before[key] != value and not (key == "num-clients" and not value):
                raise UserError(
                    f"{run.folder} was run with {key} = {before[key]!r}, now it is {value!r}: choose another --out, "
                    "or delete that folder"
                )
    return done


def check_runs(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs with their numbers of clients filled in, each checked against its data. Raises ``UserError``."""
    out = []
    for run in runs:
        try:
            settings, _ = checked(read_settings(run.config))
        except UserError as error:
            raise UserError(f"{run.folder.name}: {error}") from None
        out.append(PlannedRun({key: value for key, value in settings.flat().items() if key not in RESERVED}, run.folder))
    return out


def check_out(out: Path) -> None:
    """Raise ``UserError`` if ``out`` is a file, or the folder of a run or a comparison."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file")
    if (out / "settings.toml").exists() or (out / "comparison.csv").exists():
        raise UserError(f"--out {out}: is the folder of a run or of a comparison, choose another")


def write_results(plan: Plan, out: Path, failed: dict[str, str]) -> None:
    """Write tables, plots and the report, and print their paths."""
    runs = {point.name: read_run(point.run.folder) for point in plan.points if finished(point.run.folder)}
    if not runs:
        return
    results = Results(plan, runs)
    results.write_csv(out / "table.csv")
    text = results.markdown()
    (out / "table.md").write_text(text, encoding="utf-8")
    report = write_page(results, out, failed)
    print(f"\n{text}\ntables: {out / 'table.md'}, {out / 'table.csv'}\nreport: {report}")


def run_ray(runs: Sequence[PlannedRun], gpus_per_client: float, address: str = "") -> Iterator[Ended]:
    """Start the runs sequentially through Flower's Ray simulation and yield each as it ends."""
    from fedapps.engines import flower

    cluster = checked_cluster(address, shared_paths(runs)) if address and runs else None
    walled, warning = flower.wall_wanted(cluster=address)
    if warning:
        print(f"fedapps: {warning}", file=sys.stderr)
    for run in runs:
        resume = (run.folder / "checkpoint").exists()
        try:
            settings = read_settings({**run.config, "out": str(run.folder), "resume": resume})
            prepare_folder(settings, overwrite=not resume)
            outcome = flower.run_simulation(
                None, settings.flat(), num_nodes=flower.nodes_for(settings.num_clients, 1, gpus_per_client, None, cluster),
                gpus_per_client=gpus_per_client,
                log_path=run.folder / "run.log", ended=_ended(run.folder), walled=walled, cluster=address,
            )  # fmt: skip
        except (UserError, RunFailed) as error:
            yield Ended(run, {}, str(error))
            continue
        if status_of(run.folder) is None:
            set_status(run.folder, outcome.status, outcome.details)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status == "completed":
            yield Ended(run, read_run(run.folder).summary)
        else:
            yield Ended(run, {}, outcome.details or outcome.status)


def _ended(folder: Path) -> Callable[[], str | None]:
    return lambda: status_of(folder)


class SweepProgress:
    """Progress display of a sweep: a bar over all rounds in a terminal, and a line for every run that ends."""

    def __init__(self, runs: Sequence[PlannedRun], missing: Sequence[PlannedRun], console: Console | None = None) -> None:
        """Create the display for all ``runs``, of which ``missing`` are still to run."""
        self._console = console or Console(stderr=True)
        self._total, self._done = len(runs), len(runs) - len(missing)
        self._rounds = {run.folder: int(run.config["num-rounds"]) for run in missing}
        self._at = dict.fromkeys(self._rounds, 0)
        self._readers = {folder: RoundReader() for folder in self._rounds}
        self._failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        if self._done:
            self._print(f"{self._done} of {self._total} runs are finished")
        if self._console.is_interactive and self._rounds:
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=32),
                MofNCompleteColumn(),
                TextColumn("rounds"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
                refresh_per_second=2,
                speed_estimate_period=300,
            )
            self._task = self._bar.add_task(self._describe(), total=sum(self._rounds.values()))
            self._bar.start()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stop.set()
        if self._bar is not None:
            self._thread.join(timeout=5)
            self._bar.stop()
            self._console.show_cursor(True)

    def tell(self, ended: Ended) -> None:
        """Print how a run ended."""
        self._failed += bool(ended.error)
        self._done += not ended.error
        self._print(f"[{self._done + self._failed}/{self._total}] {ended}", "red" if ended.error else None)
        if self._bar is not None:
            # A run may end before its last round, and a failed one has no further rounds.
            self._at[ended.run.folder] = self._rounds[ended.run.folder]
            self._readers.pop(ended.run.folder, None)
            self._show()

    def _watch(self) -> None:
        while not self._stop.wait(_POLL):
            for folder, reader in list(self._readers.items()):
                if records := reader.read(folder / "rounds.jsonl"):
                    self._at[folder] = max(self._at[folder], records[-1]["round"])
            self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=sum(self._at.values()), description=self._describe())

    def _describe(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done}/{self._total} runs{failed}"

    def _print(self, text: str, style: str | None = None) -> None:
        console = self._bar.console if self._bar is not None else self._console
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()
