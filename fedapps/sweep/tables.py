"""The tables of a sweep: mean and standard deviation over seeds, with the best of every column in bold; as Markdown and CSV.

Rows are the first axis (or ``sweep.rows``) and every axis that does not apply to all runs; columns are the other axes except the seed.
"""

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from algorithms.common.checks import nearest
from fedapps.results.comparison_table import AUROC_COLUMNS, COLUMNS
from fedapps.results.formats import bytes_text, is_percent, metric_name, one_line
from fedapps.results.reader import RunFolder
from fedapps.sweep.grid import SEED
from fedapps.sweep.plan import Plan, Point, short_label

Labels = tuple[str, ...]

#: Default measures: those of the first group of which a run has any.
DEFAULTS = (
    ("auroc-mean", "auroc-worst", "auroc-parity-gap"),
    ("accuracy-mean", "accuracy-worst10", "ece-mean"),
)
#: Words in the names of measures that tell whether larger or smaller is better.
_MORE = ("mean", "worst", "worst10", "best10", "weighted")
_LESS = ("loss", "ece", "mce", "gini", "std", "gap", "bytes", "seconds", "error")


def best_of(measure: str) -> Callable[[list[float]], float] | None:
    """Return ``max`` or ``min``, whichever is better for a measure, or ``None`` if unknown."""
    for column in (*COLUMNS, *AUROC_COLUMNS):
        if column.key == measure:
            return column.best
    words = measure.split("-")
    if any(word in _LESS for word in words):
        return min
    return max if is_percent(measure) and words[-1] in _MORE else None


@dataclass(frozen=True)
class Entry:
    """One table entry: the points that differ only in the seed, and the finished runs among them."""

    points: tuple[Point, ...]
    runs: tuple[RunFolder, ...]

    @property
    def complete(self) -> bool:
        """Whether the runs of all seeds are finished."""
        return len(self.runs) == len(self.points)

    def values(self, measure: str) -> list[float]:
        """Return the values of a measure over the runs that have it."""
        return [float(run.numbers[measure]) for run in self.runs if measure in run.numbers]

    def mean(self, measure: str) -> float | None:
        """Return the mean over the seeds, or ``None`` without values."""
        values = self.values(measure)
        return math.fsum(values) / len(values) if values else None

    def std(self, measure: str) -> float | None:
        """Return the sample standard deviation over the seeds, or ``None`` with fewer than two."""
        values = self.values(measure)
        if len(values) < 2:
            return None
        return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan

    def text(self, measure: str) -> str:
        """Return mean ± std as text, with the number of seeds if some are missing; fractions in per cent."""
        mean, std = self.mean(measure), self.std(measure)
        if mean is None:
            return "-" if self.complete else "missing"
        shown = number(measure, mean)
        if std is not None:
            decimals = len(shown.partition(".")[2])
            exact = "e" in shown or not shown.replace(".", "").lstrip("-").isdigit()
            scaled = 100 * std if is_percent(measure) else std
            shown += f" ± {number(measure, std) if exact else f'{scaled:.{decimals}f}'}"
        return shown if self.complete else f"{shown} ({len(self.runs)} of {len(self.points)})"


def number(measure: str, value: float) -> str:
    """Return a mean or standard deviation as text with the usual number of decimals."""
    if "bytes" in measure.split("-"):
        return bytes_text(value)
    if is_percent(measure):
        return f"{100 * value:.2f}"
    if measure == "seconds":
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def heading(measure: str) -> str:
    """Return the heading of a measure: its name with its unit."""
    unit = ", %" if is_percent(measure) else ", s" if measure == "seconds" else ""
    name = metric_name(measure) + unit
    return name[:1].upper() + name[1:]


class Results:
    """The finished runs of a sweep, arranged in rows and columns."""

    def __init__(self, plan: Plan, runs: Mapping[str, RunFolder]) -> None:
        """Arrange the finished runs ``runs``, by name, according to ``plan``."""
        self.plan = plan
        self.row_axes, self.column_axes = _axes(plan)
        self.entries: dict[tuple[Labels, Labels], Entry] = {}
        found: dict[tuple[Labels, Labels], list[Point]] = {}
        for point in plan.points:
            key = self._labels(self.row_axes, point), self._labels(self.column_axes, point)
            found.setdefault(key, []).append(point)
        for key, points in found.items():
            finished = tuple(runs[point.name] for point in points if point.name in runs)
            self.entries[key] = Entry(tuple(points), finished)
        self.rows = list(dict.fromkeys(row for row, _ in self.entries))
        self.columns = list(dict.fromkeys(column for _, column in self.entries))
        self.known = list(dict.fromkeys(key for run in runs.values() for key in run.numbers))
        asked = plan.grid.options.measures
        self.absent = [measure for measure in asked if self.known and measure not in self.known]
        self.measures = self._measures()

    def _labels(self, axes: Sequence[str], point: Point) -> Labels:
        return tuple(point.labels.get(axis, "") for axis in axes)

    def _measures(self) -> list[str]:
        """Return the measures of the tables: those requested that some run has, or the defaults."""
        if asked := [measure for measure in self.plan.grid.options.measures if measure not in self.absent]:
            return asked
        for names in DEFAULTS:
            if found := [name for name in names if name in self.known]:
                return found
        tests = [key for run in self.runs for key in run.evaluation if "train" not in key.split("-")]
        losses = [key for key in tests if "loss" in key.split("-")]
        return list(dict.fromkeys([*losses, *tests]))[:2] or ["seconds"]

    @cached_property
    def runs(self) -> list[RunFolder]:
        """All finished runs."""
        return [run for entry in self.entries.values() for run in entry.runs]

    def row_name(self, row: Labels) -> str:
        """Return the name of a row: the value on the first axis, and names with values on the others."""
        if not self.row_axes:
            return str(self.plan.points[0].run.config["method"])
        told = [(axis, label) for axis, label in zip(self.row_axes, row, strict=True) if label]
        words = [label if axis == self.row_axes[0] else short_label(axis, label) for axis, label in told]
        return one_line(", ".join(words), 80) or "-"

    def column_name(self, column: Labels) -> str:
        """Return the name of a column."""
        words = [short_label(axis, label) for axis, label in zip(self.column_axes, column, strict=True) if label]
        return one_line(", ".join(words), 80)

    @property
    def corner(self) -> str:
        """The heading of the first column."""
        return self.row_axes[0] if self.row_axes else "method"

    def entry(self, row: Labels, column: Labels) -> Entry | None:
        """Return the entry in a row and a column; ``None`` if the grid has none."""
        return self.entries.get((row, column))

    def best(self, measure: str, column: Labels) -> set[Labels]:
        """Return the rows that show a column's best value; none if it is unknown what is better, or if all values look equal."""
        choose = best_of(measure)
        means = {
            row: mean
            for row in self.rows
            if (entry := self.entry(row, column)) and entry.complete and (mean := entry.mean(measure)) is not None
        }
        shown = {row: number(measure, mean) for row, mean in means.items() if math.isfinite(mean)}
        if choose is None or len(set(shown.values())) < 2:
            return set()
        top = number(measure, choose([mean for row, mean in means.items() if row in shown]))
        return {row for row, text in shown.items() if text == top}

    def table(self, measures: Sequence[str], mark: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
        """Return header and rows: one measure over all columns, or all measures if there is a single column."""
        shown = [(measure, column) for measure in measures for column in self.columns]
        header = [self.corner, *(self.column_name(c) if len(self.columns) > 1 else heading(m) for m, c in shown)]
        best = {(m, c): self.best(m, c) for m, c in shown}
        rows = []
        for row in self.rows:
            cells = [(entry.text(m) if (entry := self.entry(row, c)) else "-", row in best[m, c]) for m, c in shown]
            rows.append([self.row_name(row), *(mark(text) if is_best else text for text, is_best in cells)])
        return header, rows

    def tables(self, mark: Callable[[str], str]) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return (heading, header, rows) of each table; ``mark`` formats the best values."""
        if len(self.columns) == 1:
            return [("", *self.table(self.measures, mark))]
        return [(heading(measure), *self.table([measure], mark)) for measure in self.measures]

    def markdown(self) -> str:
        """Return all tables as Markdown."""
        blocks = [f"# {self.plan.title}"]
        for name, header, rows in self.tables(lambda text: f"**{text}**"):
            blocks += [f"## {name}"] * bool(name) + [_markdown_table(header, rows)]
        return "\n\n".join([*blocks, self.note()]) + "\n"

    def note(self) -> str:
        """Return the note below the tables: seeds, the meaning of bold, and measures that are left out."""
        seeds = max(len(entry.points) for entry in self.entries.values())
        over = f"Mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else "One run each"
        absent = [f" Left out, since no run has it: {m} ({nearest(m, self.known)}see summary.json)." for m in self.absent]
        return f"{over}, at the end of the runs. The best value of a column is bold.{''.join(absent)}"

    def write_csv(self, path: Path) -> None:
        """Write one line per entry: its labels, its numbers of finished and planned seeds, and every measure in full precision."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                [
                    *self.row_axes,
                    *self.column_axes,
                    "seeds",
                    "of",
                    *(f"{m}{end}" for m in self.measures for end in ("", "-over-seeds-std")),
                ]
            )
            for (row, column), entry in self.entries.items():
                cells = [value for measure in self.measures for value in (entry.mean(measure), entry.std(measure))]
                writer.writerow([*row, *column, len(entry.runs), len(entry.points), *cells])


def _axes(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the names of the row axes and of the column axes."""
    names = [axis.name for axis in plan.grid.axes if axis.name != SEED]
    rows = list(plan.grid.options.rows) or names[:1]
    # An axis that does not apply to some runs would leave gaps in a column: it distinguishes rows.
    rows += [name for name in names if name not in rows and not all(name in point.labels for point in plan.points)]
    several = [axis.name for axis in plan.grid.axes if len(axis.values) > 1]
    return rows, [name for name in names if name not in rows and name in several]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[text.replace("|", "\\|") for text in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[index]) for row in lines)) for index in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))] for row in lines
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], rule, *padded[1:]])
