"""Execution of a sweep: checks its runs, starts the missing ones, and writes tables,
plots and the report.

The results folder holds ``cells/`` (one results folder per run), ``table.csv``,
``table.md``, ``plots/`` and ``report.html``.

Its progress is a bar over all rounds in a terminal or notebook, and one line for each
run that ends.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedapps.engines.capacity import check_share, per_gpu, visible_gpus
from fedapps.engines.processes import cores
from fedapps.errors import UserError
from fedapps.lab.sweeps.grid import prune
from fedapps.lab.sweeps.page import write_page
from fedapps.lab.sweeps.plan import Plan, without_reserved
from fedapps.lab.sweeps.pool import Ended, PlannedRun, finished, run_all
from fedapps.lab.sweeps.tables import Results
from fedapps.models.options import ModelOptions
from fedapps.notes import each_once, logger
from fedapps.records.files import write_text
from fedapps.records.lock import FolderLock
from fedapps.records.reader import read_run
from fedapps.records.rounds import FREE, RoundReader
from fedapps.runs.devices import Asked
from fedapps.runs.prepare import assemble
from fedapps.runs.progress import Display
from fedapps.settings.reading import default_config, read_settings
from fedapps.settings.settings import Settings
from fedapps.toml_text import read_toml

_POLL = 1.0  # seconds between polls of the runs' folders


class SweepProgress(Display):
    """Progress display of a sweep: a bar over all rounds in a terminal, and one line
    for each run that ends.
    """

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        missing: Sequence[PlannedRun],
        console: Console | None = None,
    ) -> None:
        """Create the display for all ``runs``; ``missing`` are those not yet done."""
        super().__init__(console, stderr=True)
        self._total, self._done = len(runs), len(runs) - len(missing)
        self._rounds = {run.folder: int(run.config["num-rounds"]) for run in missing}
        self._at = dict.fromkeys(self._rounds, 0)
        self._readers = {folder: RoundReader() for folder in self._rounds}
        self._failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._done:
            self._print(f"{self._done} of {self._total} runs are finished")
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        if self._rounds:
            total = sum(self._rounds.values())
            self._start_bar(
                columns, self._describe(), total, refresh_per_second=2, speed_estimate_period=300
            )
        if self._rounds and (self._bar or self._cell):
            self._show()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._stop_bar()

    def show_end(self, ended: Ended) -> None:
        """Print how a run ended."""
        self._failed += bool(ended.error)
        self._done += not ended.error
        if ended.error or self._cell is None:  # a notebook shows only the failures
            self._print(
                f"[{self._done + self._failed}/{self._total}] {ended}",
                "red" if ended.error else None,
            )
        if self._bar or self._cell:
            # A run may end before its last round, and a failed one has no further
            # rounds.
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
            self._bar.update(
                self._task, completed=sum(self._at.values()), description=self._describe()
            )
        elif self._cell is not None:
            rounds, total = sum(self._at.values()), sum(self._rounds.values())
            self._cell.show(f"{self._describe()}, {rounds}/{total} rounds", rounds, total)

    def _describe(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done}/{self._total} runs{failed}"


#: The share of a core that pages in the meantime may use.
SHARE = 0.03
#: The lock of a folder against a second sweep, which would start the same runs.
only_one = partial(FolderLock, name="sweep.lock")
#: Settings with these values are filled in by the run, from its data.
FILLED = {
    "device": "auto",
    "num-clients": 0,
    "clients-per-round": Settings.clients_per_round,
    "model.name": ModelOptions.name,
    "model.frozen": ModelOptions.frozen,
}


@dataclass(frozen=True)
class Way:
    """How runs are started: in parallel processes, ``jobs`` at a time (0: as many as
    there are cores), with ``gpus_per_run`` of a GPU for each that computes on one.
    """

    jobs: int = 0
    gpus_per_run: float = 1.0

    def __post_init__(self) -> None:
        if self.jobs < 0:
            raise UserError(f"--jobs {self.jobs}: choose 1 or more, or 0 for one job per core")
        check_share("--gpus-per-run", self.gpus_per_run, most=1)

    def processes(self, on_gpu: bool) -> tuple[int, list[str]]:
        """Return the number of runs at a time, and the GPUs that are dealt to them.
        ``on_gpu``: whether a run computes on one.
        """
        jobs = self.jobs or cores()
        gpus = visible_gpus() if on_gpu else []
        if not gpus:
            if self.gpus_per_run != 1:
                logger.warning(
                    "gpus-per-run = %g has no effect: no run uses a GPU", self.gpus_per_run
                )
            return jobs, []
        each = per_gpu(self.gpus_per_run)
        jobs = min(jobs, each * len(gpus))
        logger.warning(
            "%d runs at a time, at most %d on each of %d GPUs (gpus-per-run = %g)",
            jobs,
            each,
            len(gpus),
            self.gpus_per_run,
        )
        return jobs, gpus


def uses_gpu(settings: Settings) -> bool:
    """Return whether a run computes on a GPU. Raises ``UserError`` for a certain one:
    each process sees only the GPU that is dealt to it.
    """
    kind, _, number = settings.device.partition(":")
    if number:
        raise UserError(
            f"device = {settings.device!r}: runs are dealt over the visible GPUs: choose {kind}, "
            f"and CUDA_VISIBLE_DEVICES={number} for this one"
        )
    return kind == "cuda"


def missing_runs(plan: Plan) -> list[PlannedRun]:
    """Return the runs that are not finished, with their numbers of clients and their
    devices filled in, each checked against its data. Raises ``UserError``.
    """
    if plan.out.exists() and not plan.out.is_dir():
        raise UserError(f"--out {plan.out}: is a file: choose a folder")
    if (plan.out / "settings.toml").exists() or (plan.out / "comparison.csv").exists():
        raise UserError(
            f"--out {plan.out}: is the folder of a run or of a comparison: choose another"
        )
    runs = []
    with each_once():
        for run in [point.run for point in plan.points if not is_done(point.run)]:
            try:
                settings, *_ = assemble(read_settings(run.config), Asked())
            except UserError as error:
                raise UserError(f"{run.folder.name}: {error}") from None
            runs.append(PlannedRun(without_reserved(settings), run.folder, uses_gpu(settings)))
    return runs


def execute_sweep(
    plan: Plan,
    missing: Sequence[PlannedRun],
    way: Way,
    console: Console | None = None,
    page_every: float = 10.0,
) -> tuple[Results | None, dict[str, str]]:
    """Execute the missing runs of a sweep, prune folders, write tables and plots.
    Return the results of the finished runs, if any, and the errors of failed runs by
    name.

    ``console``: where the progress is shown. ``page_every``: seconds between two pages
    in the meantime, written when a run ends; if drawing takes long, there are fewer.
    """
    keep, failed = plan.grid.options.keep, {}
    (plan.out / "cells").mkdir(mode=0o700, parents=True, exist_ok=True)

    def read() -> Results:
        folders = [point.run.folder for point in plan.points]
        return Results(plan, {path.name: read_run(path) for path in folders if finished(path)})

    with only_one(plan.out):
        write_record(plan)
        due = time.monotonic() + page_every
        with SweepProgress([point.run for point in plan.points], missing, console) as progress:
            try:
                for ended in ended_runs(missing, way):
                    progress.show_end(ended)
                    prune(ended.run.folder, keep)
                    if ended.error:
                        failed[ended.run.folder.name] = ended.error
                    if (began := time.monotonic()) >= due:
                        write_page(read(), plan.out, failed, going=True)
                        due = time.monotonic() + max(page_every, (time.monotonic() - began) / SHARE)
            except BaseException:
                if (plan.out / "report.html").exists():  # it must not reload for ever
                    write_page(read(), plan.out, failed)
                raise
        for point in plan.points:
            prune(point.run.folder, keep)
        results = read()
        if not results.runs:
            return None, failed
        write_text(plan.out / "table.csv", results.csv())
        write_text(plan.out / "table.md", results.markdown())
        write_page(results, plan.out, failed)
    return results, failed


def write_record(plan: Plan) -> None:
    """Write sweep.json: the file, its scale, the given settings, and the axes of the
    table.
    """
    record = {
        "file": plan.grid.name,
        "title": plan.grid.options.title,
        "scale": plan.grid.scale,
        "settings": list(plan.given),
        "runs": len(plan.points),
        "keep": list(plan.grid.options.keep),
        "axes": {axis.name: list(axis.values) for axis in plan.grid.axes},
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write_text(plan.out / "sweep.json", text + "\n")


def ended_runs(missing: Sequence[PlannedRun], way: Way) -> Iterator[Ended]:
    """Start the runs; yield each when it ends."""
    if not missing:
        return iter(())
    return run_all(missing, *way.processes(any(run.on_gpu for run in missing)))


def is_done(run: PlannedRun) -> bool:
    """Return whether a run is finished. Raises ``UserError`` if its folder holds a run
    with other settings.
    """
    done = finished(run.folder)
    path = run.folder / "settings.toml"
    if path.exists() and (done or (run.folder / "checkpoint").exists()):
        known = default_config(run.config)
        before = {key: known[key] for key in run.config if key in known} | read_toml(path)
        for key, value in run.config.items():
            if key not in FREE and before[key] != value and FILLED.get(key) != value:
                raise UserError(
                    f"{run.folder} holds a run with {key} = {before[key]!r}, not {value!r}: "
                    "choose another --out, or delete that folder"
                )
    return done
