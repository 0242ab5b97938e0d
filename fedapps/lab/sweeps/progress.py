"""The progress display of a sweep: a bar over all rounds in a terminal or notebook, and
one line for each run that ends.
"""

import threading
from collections.abc import Sequence
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

from fedapps.lab.sweeps.pool import Ended, PlannedRun
from fedapps.records.rounds import RoundReader
from fedapps.runs.progress import Display

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
