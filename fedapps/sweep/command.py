"""`fedapps sweep`: runs a grid of settings in parallel, resumable, and writes tables, plots and a report.

The results folder holds ``cells/`` (one results folder per cell), ``table.csv``, ``table.md``, ``plots/`` and ``report.html``. Running
the same file again skips the finished cells and continues with the others.
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

from fedapps.errors import INTERRUPTED, RunFailed, UserError
from fedapps.prepare import checked, prepare_folder
from fedapps.progress import RoundReader
from fedapps.results.reader import read_run
from fedapps.results.writer import FREE, set_status, status_of
from fedapps.settings import default_config, read_settings
from fedapps.sweep.grid import RESERVED
from fedapps.sweep.page import write_page
from fedapps.sweep.plan import Plan, read_plan
from fedapps.sweep.pool import Cell, Ended, finished, run_cells
from fedapps.sweep.tables import Results
from fedapps.toml_text import read_toml

_POLL = 1.0  # seconds between polls of the cells' folders


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
        raise UserError("--jobs is for --engine inline: Ray runs a cell's clients in parallel, one cell after the other")
    name = "-".join(filter(None, ("sweep", arguments.file.stem, arguments.scale)))
    out = (arguments.out or Path("results") / name).expanduser().absolute()
    plan = read_plan(arguments.file, arguments.settings, arguments.scale, out)
    if arguments.dry_run:
        return show_plan(plan)
    check_out(out)
    missing = check_cells([point.cell for point in plan.points if not is_done(point.cell)])
    (out / "cells").mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(out):
        failed = run_missing(plan, missing, arguments)
        write_results(plan, out, failed)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plan.points)} cells: see above, mend, and start again; what is finished is kept")
    return 0


def run_missing(plan: Plan, missing: Sequence[Cell], arguments: argparse.Namespace) -> dict[str, str]:
    """Run the unfinished cells, show the progress, and return the reasons of failures by cell name."""
    failed: dict[str, str] = {}
    with SweepProgress([point.cell for point in plan.points], missing) as progress:
        by_ray = arguments.engine == "ray"
        for ended in run_ray(missing, arguments.gpus_per_client) if by_ray else run_cells(missing, arguments.jobs or cores()):
            progress.tell(ended)
            if ended.error:
                failed[ended.cell.folder.name] = ended.error
    return failed


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Lock the folder against a second sweep, which would run the same cells concurrently. Raises ``UserError`` if it is locked."""
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
    """Print the cells and their states; return the exit status 0."""
    for point in plan.points:
        state = "finished" if finished(point.cell.folder) else "to run"
        print(f"{point.name}  ({point.cell.config['num-rounds']} rounds, {state})")
    done = sum(finished(point.cell.folder) for point in plan.points)
    print(f"{len(plan.points)} cells, {done} of them finished; results: {plan.points[0].cell.folder.parent.parent}")
    return 0


def is_done(cell: Cell) -> bool:
    """Return whether a cell is finished. Raises ``UserError`` if its folder holds a run with other settings."""
    done = finished(cell.folder)
    path = cell.folder / "settings.toml"
    if path.exists() and (done or (cell.folder / "checkpoint").exists()):
        known = default_config()
        before = {key: known[key] for key in cell.config if key in known} | read_toml(path)
        for key, value in cell.config.items():
            if key not in FREE and before[key] != value and not (key == "num-clients" and not value):
                raise UserError(
                    f"{cell.folder} was run with {key} = {before[key]!r}, now it is {value!r}: choose another --out, "
                    "or delete that folder"
                )
    return done


def check_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with their numbers of clients filled in, each checked against its data. Raises ``UserError``."""
    out = []
    for cell in cells:
        try:
            settings, _ = checked(read_settings(cell.config))
        except UserError as error:
            raise UserError(f"{cell.folder.name}: {error}") from None
        out.append(Cell({key: value for key, value in settings.flat().items() if key not in RESERVED}, cell.folder))
    return out


def check_out(out: Path) -> None:
    """Raise ``UserError`` if ``out`` is a file, or the folder of a run or a comparison."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file")
    if (out / "settings.toml").exists() or (out / "comparison.csv").exists():
        raise UserError(f"--out {out}: is the folder of a run or of a comparison, choose another")


def write_results(plan: Plan, out: Path, failed: dict[str, str]) -> None:
    """Write tables, plots and the report, and print their paths."""
    runs = {point.name: read_run(point.cell.folder) for point in plan.points if finished(point.cell.folder)}
    if not runs:
        return
    results = Results(plan, runs)
    results.write_csv(out / "table.csv")
    text = results.markdown()
    (out / "table.md").write_text(text, encoding="utf-8")
    report = write_page(results, out, failed)
    print(f"\n{text}\ntables: {out / 'table.md'}, {out / 'table.csv'}\nreport: {report}")


def run_ray(cells: Sequence[Cell], gpus_per_client: float) -> Iterator[Ended]:
    """Run cells sequentially through Flower's Ray simulation and yield each as it ends."""
    from fedapps.engines import flower

    for cell in cells:
        resume = (cell.folder / "checkpoint").exists()
        try:
            settings = read_settings({**cell.config, "out": str(cell.folder), "resume": resume})
            prepare_folder(settings, overwrite=not resume)
            outcome = flower.run_simulation(
                None, settings.flat(), num_nodes=settings.num_clients, gpus_per_client=gpus_per_client,
                log_path=cell.folder / "run.log", ended=_ended(cell.folder),
            )  # fmt: skip
        except (UserError, RunFailed) as error:
            yield Ended(cell, {}, str(error))
            continue
        if status_of(cell.folder) is None:
            set_status(cell.folder, outcome.status, outcome.details)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status == "completed":
            yield Ended(cell, read_run(cell.folder).summary)
        else:
            yield Ended(cell, {}, outcome.details or outcome.status)


def _ended(folder: Path) -> Callable[[], str | None]:
    return lambda: status_of(folder)


class SweepProgress:
    """Progress display of a sweep: a bar over all rounds in a terminal, and a line for every cell that ends."""

    def __init__(self, cells: Sequence[Cell], missing: Sequence[Cell], console: Console | None = None) -> None:
        """Create the display for all ``cells``, of which ``missing`` are still to run."""
        self._console = console or Console(stderr=True)
        self._total, self._done = len(cells), len(cells) - len(missing)
        self._rounds = {cell.folder: int(cell.config["num-rounds"]) for cell in missing}
        self._at = dict.fromkeys(self._rounds, 0)
        self._readers = {folder: RoundReader() for folder in self._rounds}
        self._failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        if self._done:
            self._print(f"{self._done} of {self._total} cells are finished")
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
        """Print how a cell ended."""
        self._failed += bool(ended.error)
        self._done += not ended.error
        self._print(f"[{self._done + self._failed}/{self._total}] {ended}", "red" if ended.error else None)
        if self._bar is not None:
            # A run may end before its last round, and a failed one has no further rounds.
            self._at[ended.cell.folder] = self._rounds[ended.cell.folder]
            self._readers.pop(ended.cell.folder, None)
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
        return f"{self._done}/{self._total} cells{failed}"

    def _print(self, text: str, style: str | None = None) -> None:
        console = self._bar.console if self._bar is not None else self._console
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()
