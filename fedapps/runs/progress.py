"""Progress display of a run, independent of the engine: it reads the rounds.jsonl that
the run writes.

A terminal shows a live bar and a notebook a bar in the cell's output. Elsewhere (a log,
a pipe, continuous integration) it prints a few plain lines and flushes them. The reader
remembers its position in the file, so polling is cheap when there is nothing new. A
line that is still being written is read by the next poll.
"""

import html
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as RichProgress,
    ProgressColumn,
    TextColumn,
)
from rich.table import Column

from fedapps.formats import (
    LEADING_MEANS,
    one_line,
    percent_text,
    seconds_text,
    three_digits,
)
from fedapps.records.reader import is_number, numbers
from fedapps.records.rounds import RoundReader

_LINE_EVERY = 2.0  # seconds between two plain lines
_EVALUATION_EVERY = 0.5  # ... if there is a new evaluation
_BAR_EVERY = 0.1  # ... if it is a bar in a notebook
_FAILURES_SHOWN = 3
_WINDOW = 10  # rounds over which the time per round is averaged


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class Line:
    """A bar with a text in the output of a notebook's cell; ``show`` updates it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, done: int, total: int) -> None:
        """Show the text beside a bar that is filled to ``done`` of ``total``."""
        bar = f'<progress value="{done}" max="{max(total, 1)}" style="width: 12em"></progress>'
        content = {"text/plain": text, "text/html": f"{bar} {html.escape(text)}"}
        if self._handle is None:
            self._handle = import_module("IPython.display").display(
                content, raw=True, display_id=True
            )
        else:
            self._handle.update(content, raw=True)


class Display:
    """The output of a progress display: a bar in a terminal, a notebook's cell, or
    lines.

    ``console``: by default standard output, with ``stderr`` standard error unless it is
    a notebook.
    """

    def __init__(self, console: Console | None, stderr: bool = False) -> None:
        self._cell = Line() if console is None and in_notebook() else None
        self._console = console or Console(stderr=stderr and self._cell is None)
        self._bar: RichProgress | None = None

    def _start_bar(
        self, columns: Sequence[ProgressColumn], text: str, total: int, label: str = "", **how: Any
    ) -> None:
        """Start a bar if there is a terminal for it; ``how``: arguments of rich's."""
        if self._console.is_interactive:
            self._bar = RichProgress(*columns, console=self._console, **how)
            self._task = self._bar.add_task(text, total=total, label=label)
            self._bar.start()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            try:
                self._bar.stop()
            finally:
                # If a second Ctrl-C arrives while the bar stops, at least the cursor is
                # restored.
                self._console.show_cursor(True)
                self._bar = None

    def _print(self, text: str, style: str | None = None) -> None:
        console = self._bar.console if self._bar is not None else self._console
        # No wrapping: one line per log message. No markup: the text may come from a
        # client. In a notebook, rich does not look for NO_COLOR.
        style = None if os.environ.get("NO_COLOR") else style
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        if console.file is not None:
            console.file.flush()


class Progress(Display):
    """The progress display of a run, a context manager that restores the terminal on
    exit, also after Ctrl-C.

    ``num_rounds``: total number of rounds. ``label``: name of the run, for example its
    method. ``console``: where to write (default: standard output). ``clock``: returns
    seconds from any origin, for tests.
    """

    def __init__(
        self,
        num_rounds: int,
        label: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self.num_rounds = num_rounds
        self.label = one_line(label, 40)
        self.done = 0
        self._failures: dict[int, int] = {}
        self._clock = clock
        self._reader = RoundReader()
        self._started = False
        self._note = "starting"
        self._loss: float | None = None
        self._measure: tuple[str, float] | None = None
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._last_line = -math.inf
        self._last_shown = -1

    @property
    def failures(self) -> int:
        """The number of replies skipped in the rounds done so far."""
        return sum(count for number, count in self._failures.items() if number <= self.done)

    def __enter__(self) -> Self:
        whole = Column(no_wrap=True, overflow="ellipsis")
        columns = (
            TextColumn("[bold]{task.fields[label]}", markup=True),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False, table_column=whole),
        )
        label = self.label.replace("[", r"\[")
        # rich prints the server's log lines above the bar
        self._start_bar(columns, self._note, self.num_rounds, label, refresh_per_second=5)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._stop_bar()
        elif 0 < self.done != self._last_shown:
            self._print_line()

    def note(self, text: str) -> None:
        """Show a status between rounds: `starting Ray`, `loading data`, `writing the
        report`.
        """
        self._note = one_line(text, 80)
        if self._bar is not None:
            self._bar.update(self._task, description=self._describe())
        elif self._cell is not None:
            self._print_line()
        else:
            self._print(f"{self.label}: {self._note}")

    def poll(self, run_dir: Path | str) -> None:
        """Read and show new records in the run folder.

        Rounds in the file at the first call (a resumed run) count as done; their
        failures are counted, but not printed.
        """
        records = self._reader.read(Path(run_dir) / "rounds.jsonl")
        resumed, self._started = not self._started, True
        if not records:
            return
        self._note = ""
        evaluated = False
        for record in records:
            evaluated |= self._take(record, quiet=resumed)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, description=self._describe())
        elif self._is_due(evaluated):
            self._print_line()

    def _take(self, record: dict[str, Any], quiet: bool) -> bool:
        """Process one record; return whether it held an evaluation."""
        # A run resumed from an older checkpoint repeats rounds that it had already
        # done.
        self.done = record["round"]
        loss = numbers(record.get("train")).get("loss")
        self._loss = loss if loss is not None else self._loss
        if is_number(record.get("seconds")):
            self._seconds.append(record["seconds"])
        entries = record.get("failures")
        failures = entries if isinstance(entries, list) else []
        if not quiet:
            for failure in failures[: max(0, _FAILURES_SHOWN - self.failures)]:
                self._print_failure(failure)
        # By round, because a rewritten file repeats its rounds.
        self._failures.pop(self.done, None)
        if failures:
            self._failures[self.done] = len(failures)
        evaluation = numbers(record.get("evaluate"))
        if evaluation:
            key = next((key for key in LEADING_MEANS if key in evaluation), next(iter(evaluation)))
            self._measure = key, evaluation[key]
        return bool(evaluation)

    def _is_due(self, evaluated: bool) -> bool:
        pause = _EVALUATION_EVERY if evaluated else _LINE_EVERY
        pause = pause if self._cell is None else _BAR_EVERY
        return self.done >= self.num_rounds or self._clock() - self._last_line >= pause

    def _describe(self) -> str:
        parts = []
        if self._loss is not None:
            parts.append(f"loss {self._loss:.3f}")
        if self._measure is not None:
            key, value = self._measure
            parts.append(
                f"accuracy {percent_text(value)}"
                if key == "accuracy-mean"
                else f"{key} {value:.4g}"
            )
        if self._seconds:
            per_round = math.fsum(self._seconds) / len(self._seconds)
            speed = f"{three_digits(per_round)} s" if per_round >= 0.1 else seconds_text(per_round)
            parts.append(f"{speed}/round")
            if self.done < self.num_rounds:
                parts.append(f"ETA {seconds_text(per_round * (self.num_rounds - self.done))}")
        if self.failures:
            parts.append(f"{self.failures} failure{'s' if self.failures > 1 else ''}")
        if self._note:
            parts.append(self._note)
        return "  ".join(parts)

    def _print_line(self) -> None:
        self._last_line, self._last_shown = self._clock(), self.done
        details = self._describe()
        text = f"{self.label}: round {self.done}/{self.num_rounds}" + (
            f"  {details}" if details else ""
        )
        if self._cell is not None:
            self._cell.show(text, self.done, self.num_rounds)
        else:
            self._print(text)

    def _print_failure(self, failure: object) -> None:
        if isinstance(failure, dict):
            client, reason = (
                one_line(str(failure.get("client")), 40),
                one_line(str(failure.get("reason")), 200),
            )
            self._print(f"Round {self.done}: skipped client {client}: {reason}", style="yellow")
