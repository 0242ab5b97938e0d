"""The tables of a sweep, as Markdown and CSV: mean and standard deviation over seeds,
differences by seed, and the values that a paper prints.

Rows are the first axis (or ``sweep.rows``) and every axis that does not apply to all
runs. Columns are the other axes, except the seed.

Numbers have the decimals of the measure, differences their interval.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from fedapps.algorithms.common.options import nearest
from fedapps.algorithms.common.privacy import concentrated_epsilon
from fedapps.formats import bytes_text, is_percent, one_line, sentence
from fedapps.lab.results.comparison_table import AUROC_COLUMNS, COLUMNS, std_of
from fedapps.lab.results.run_measures import measured, read_measure, same_clients
from fedapps.lab.results.sections import table_text
from fedapps.lab.results.seeds import ENOUGH, WHO, Difference, Measured, difference, stands_out
from fedapps.lab.sweeps.grid import SEED
from fedapps.lab.sweeps.plan import Plan, Point, short_label
from fedapps.records.reader import RunFolder

#: Words in the names of measures that show whether larger or smaller is better.
_MORE = ("mean", "worst", "worst10", "best10", "weighted")
_LESS = (
    "loss",
    "ece",
    "mce",
    "gini",
    "std",
    "gap",
    "bytes",
    "seconds",
    "error",
    "rmse",
    "mae",
    "mse",
)


def best_of(text: str) -> Callable[[list[float]], float] | None:
    """Return ``max`` or ``min``, whichever is better for a measure, or ``None`` if
    unknown.
    """
    measure = read_measure(text).unit
    if measure == "rounds":
        return min
    for column in (*COLUMNS, *AUROC_COLUMNS):
        if column.key == measure:
            return column.best
    words = measure.split("-")
    if any(word in _LESS for word in words):
        return min
    return max if is_percent(measure) and words[-1] in _MORE else None


def number(text: str, value: float) -> str:
    """Return a mean or standard deviation as text with the usual number of decimals."""
    measure = read_measure(text).unit
    if measure in ("rounds", "seconds") and not math.isfinite(value):
        return "never"
    if measure == "rounds":
        return f"{value:.0f}"
    if "bytes" in measure.split("-"):
        return bytes_text(value)
    if is_percent(measure):
        return f"{100 * value:.2f}"
    if measure == "seconds":
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def heading(text: str) -> str:
    """Return the heading of a measure: its name with its unit."""
    measure = read_measure(text)
    unit = ", %" if is_percent(measure.unit) else ", s" if measure.key == "seconds" else ""
    return sentence(measure.name + unit)


def difference_text(measure: str, gains: Difference) -> str:
    """Return a paired difference as text: its mean and, from three seeds on, its 95 %
    intervals and the number of seeds in which it is positive.
    """
    if not gains.by_seed:
        return ""
    scale = 100 if is_percent(read_measure(measure).unit) else 1
    n = len(gains.by_seed)
    text = _signed(scale * math.fsum(gains.by_seed) / n)
    for name, one in gains.intervals.items():
        if math.isfinite(one.low):
            text += f", {name} [{_signed(scale * one.low)}, {_signed(scale * one.high)}]"
    if not gains.intervals:
        return text
    return f"{text}, {sum(gain > 0 for gain in gains.by_seed)} of {n}"


def _signed(value: float) -> str:
    text = f"{value:+.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:+.2g}"
    return text.replace("-", "\N{MINUS SIGN}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown, columns aligned."""
    lines = [[text.replace("|", "\\|") for text in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[index]) for row in lines)) for index in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [
            row[0].ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in lines
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], rule, *padded[1:]])


Labels = tuple[str, ...]
#: The method without federation.
ALONE = "local"

#: Default measures: those of the first group that a run has at least one of.
DEFAULTS = (
    ("auroc-mean", "auroc-worst", "auroc-parity-gap"),
    ("accuracy-mean", "accuracy-worst10", "ece-mean"),
    ("rmse-mean", "rmse-worst10", "r2-pooled"),
    ("concordance-mean", "concordance-worst10", "concordance-pooled"),
)


@dataclass(frozen=True)
class Entry:
    """One table entry: the points that differ only in the seed, and the finished runs
    among them.
    """

    points: tuple[Point, ...]
    runs: tuple[RunFolder, ...]

    @property
    def complete(self) -> bool:
        """Whether the runs of all seeds are finished."""
        return len(self.runs) == len(self.points)

    def values(self, measure: str) -> list[float]:
        """Return the values of a measure, from the runs that have it."""
        return list(self.measured(measure).by_seed.values())

    def measured(self, measure: str) -> Measured:
        """Return the values of a measure by seed, from the runs that have it."""
        seeds = {point.name: point.run.config[SEED] for point in self.points}
        return measured({seeds[run.path.name]: run for run in self.runs}, read_measure(measure))

    def mean(self, measure: str) -> float | None:
        """Return the mean over the seeds, or ``None`` without values."""
        values = self.values(measure)
        return math.fsum(values) / len(values) if values else None

    def std(self, measure: str) -> float | None:
        """Return the sample standard deviation over the seeds, or ``None`` with fewer
        than two.
        """
        return std_of(self.values(measure))

    def text(self, measure: str) -> str:
        """Return mean ± std as text, with the number of seeds if some are missing;
        fractions in per cent.
        """
        mean, std = self.mean(measure), self.std(measure)
        if mean is None:
            return "-" if self.complete else "missing"
        shown = number(measure, mean)
        if std is not None:
            decimals = len(shown.partition(".")[2])
            exact = "e" in shown or not shown.replace(".", "").lstrip("-").isdigit()
            scaled = 100 * std if is_percent(read_measure(measure).unit) else std
            shown += f" ± {number(measure, std) if exact else f'{scaled:.{decimals}f}'}"
        return shown if self.complete else f"{shown} ({len(self.runs)} of {len(self.points)})"


class Results:
    """The finished runs of a sweep, arranged in rows and columns."""

    def __init__(self, plan: Plan, runs: Mapping[str, RunFolder]) -> None:
        """Arrange the finished runs ``runs``, by name, according to ``plan``."""
        self.plan, self.runs_by_name = plan, runs
        self.row_axes, self.column_axes = _axes(plan)
        points: dict[tuple[Labels, Labels], list[Point]] = {}
        for point in plan.points:
            row, column = (
                tuple(point.labels.get(axis, "") for axis in axes)
                for axes in (self.row_axes, self.column_axes)
            )
            points.setdefault((row, column), []).append(point)
        self.entries = {
            key: Entry(tuple(same), tuple(runs[one.name] for one in same if one.name in runs))
            for key, same in points.items()
        }
        self.rows = list(dict.fromkeys(row for row, _ in self.entries))
        self.columns = list(dict.fromkeys(column for _, column in self.entries))
        self.known = list(dict.fromkeys(key for run in runs.values() for key in run.numbers))
        self.absent = [
            measure
            for measure in plan.grid.options.measures
            if runs and not any(entry.values(measure) for entry in self.entries.values())
        ]
        self.measures = self._measures()

    def _measures(self) -> list[str]:
        """Return the measures of the tables: those requested that some run has, or the
        defaults.
        """
        if requested := [
            measure for measure in self.plan.grid.options.measures if measure not in self.absent
        ]:
            return requested
        for names in DEFAULTS:
            if known := [name for name in names if name in self.known]:
                return known
        tests = [
            key for run in self.runs for key in run.evaluation if "train" not in key.split("-")
        ]
        losses = [key for key in tests if "loss" in key.split("-")]
        return list(dict.fromkeys([*losses, *tests]))[:2] or ["seconds"]

    @cached_property
    def runs(self) -> list[RunFolder]:
        """All finished runs."""
        return [run for entry in self.entries.values() for run in entry.runs]

    def row_name(self, row: Labels) -> str:
        """Return the name of a row: the value on the first axis, then the other axes
        with their values.
        """
        if not self.row_axes:
            return str(self.plan.points[0].run.config["method"])
        return _joined(self.row_axes, row, self.row_axes[0]) or "-"

    def column_name(self, column: Labels) -> str:
        """Return the name of a column."""
        return _joined(self.column_axes, column)

    def entry(self, row: Labels, column: Labels) -> Entry:
        """Return the entry in a row and a column; it is empty if the grid has no point
        there.
        """
        return self.entries.get((row, column), Entry((), ()))

    def best(self, measure: str, column: Labels) -> set[Labels]:
        """Return the row that is better in a column than all others, beyond the noise
        (``stands_out``).

        The set is empty with fewer than three seeds, or if it is unknown which values
        are better.
        """
        choose = best_of(measure)
        if choose is None:
            return set()
        values = {
            row: found
            for row in self.rows
            if (entry := self.entry(row, column)).complete
            and (found := entry.measured(measure)).by_seed
        }
        return {row for row in values if stands_out(row, values, smaller=choose is min)}

    def gains(self, row: Labels, column: Labels, measure: str) -> Difference:
        """Return the difference between a row and the one it is compared with; without
        values if there is none.
        """
        name = self.row_name(row)
        partner = self.plan.grid.options.partner(name)
        if self.over_alone and name != ALONE:
            partner = ALONE
        other = next(
            (known for known in self.rows if partner and self.row_name(known) == partner), None
        )
        if not other:
            return Difference(())
        ours, theirs = (self.entry(one, column).measured(measure) for one in (row, other))
        return difference(ours, theirs)

    def printed(self, row: Labels, column: Labels, measure: str) -> str:
        """Return the text that a paper prints for a row and a column."""
        of_rows = (self.plan.grid.options.printed or {}).get(measure, {})
        text = of_rows.get(self.row_name(row), "")
        return text if isinstance(text, str) else text.get(self.column_name(column), "")

    def table(
        self, measures: Sequence[str], mark: Callable[[str], str]
    ) -> tuple[list[str], list[list[str]]]:
        """Return header and rows: one measure over all columns, or all measures if
        there is a single column.

        A measure is followed by the values that the paper prints and, if requested, by
        the differences by seed.
        """
        several = len(self.columns) > 1
        columns = [
            (self.row_axes[0] if self.row_axes else "method", [*map(self.row_name, self.rows)])
        ]
        for measure, column in product(measures, self.columns):
            name = self.column_name(column) if several else heading(measure)
            best = self.best(measure, column)
            texts = {row: self.entry(row, column).text(measure) for row in self.rows}
            columns.append(
                (name, [mark(text) if row in best else text for row, text in texts.items()])
            )
            printed = [self.printed(row, column, measure) for row in self.rows]
            if any(printed):
                columns.append(("printed", printed))
            rows = self.rows if measure in self.paired else []
            gains = [difference_text(measure, self.gains(row, column, measure)) for row in rows]
            if any(gains):
                heads = "over training alone" if self.over_alone else "by seed"
                columns.append((heads if several else f"{name}, {heads}", gains))
        header, cells = zip(*columns, strict=True)
        return list(header), [list(row) for row in zip(*cells, strict=True)]

    @property
    def paired(self) -> tuple[str, ...]:
        """The measures whose differences by seed are shown."""
        options = self.plan.grid.options
        pairs = options.against or self.over_alone
        return (options.paired or tuple(self.measures[:1])) if pairs else ()

    @property
    def over_alone(self) -> bool:
        """Whether rows are compared with training alone: one of them is, and the file
        names no other row.
        """
        rows = map(self.row_name, self.rows)
        return not self.plan.grid.options.against and ALONE in rows and len(self.rows) > 1

    def tables(self, mark: Callable[[str], str]) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return (heading, header, rows) of each table; ``mark`` formats the best
        values.
        """
        if len(self.columns) == 1:
            return [("", *self.table(self.measures, mark))]
        return [(heading(measure), *self.table([measure], mark)) for measure in self.measures]

    def markdown(self) -> str:
        """Return all tables as Markdown."""
        blocks = [f"# {self.plan.title}"]
        for name, header, rows in self.tables(lambda text: f"**{text}**"):
            blocks += [f"## {name}"] * bool(name) + [markdown_table(header, rows)]
        return "\n\n".join([*blocks, self.note()]) + "\n"

    def note(self) -> str:
        """Return the note below the tables: seeds, the meaning of bold, and measures
        that are left out.
        """
        seeds = max(len(entry.points) for entry in self.entries.values())
        over = (
            f"Mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else "One run each"
        )
        absent = [
            f" No run has {m}: {nearest(m, self.known)}summary.json lists the measures."
            for m in self.absent
        ]
        bold = " Bold: better than every other row, in all 95 % intervals of the difference."
        against = self.plan.grid.options.against
        other = f"{against!r}" if isinstance(against, str) else "the row named in the sweep file"
        head = "By seed"
        if self.over_alone:
            head, other = "Over training alone", repr(ALONE)
        beside = f" {head}: the paired difference to {other}"
        beside += (
            ", its 95 % intervals, and the number of seeds with a positive difference. "
            f"{WHO[all(map(same_clients, self.runs))]}"
            if seeds >= ENOUGH
            else ". Intervals need three seeds."
        )
        return (
            f"{over}, at the end of the runs.{bold * (seeds >= ENOUGH)}"
            f"{beside * bool(self.paired)}{''.join(absent)}{self._privacy()}"
        )

    def _privacy(self) -> str:
        """Return what the runs spend together, if several are private."""
        spent = [run.summary for run in self.runs if run.summary.get("concentrated-rho")]
        if len(spent) < 2:
            return ""
        delta = min(summary["delta"] for summary in spent)
        together = concentrated_epsilon(sum(s["concentrated-rho"] for s in spent), delta)
        return (
            f" **Clients in all {len(spent)} private runs spend epsilon = {together:.3g} at delta "
            f"= {delta:g}**, not that of one run."
        )

    def records(self) -> list[dict[str, Any]]:
        """Return one row per entry: its labels, the numbers of finished and planned
        seeds, and every measure in full precision.
        """
        rows = []
        for (row, column), entry in self.entries.items():
            out: dict[str, Any] = dict(
                zip((*self.row_axes, *self.column_axes), (*row, *column), strict=True)
            )
            out |= {"seeds": len(entry.runs), "of": len(entry.points)}
            for measure in self.measures:
                out |= {
                    measure: entry.mean(measure),
                    f"{measure}-over-seeds-std": entry.std(measure),
                }
            rows.append(out)
        return rows

    def csv(self) -> str:
        """Return the records as the text of a CSV file."""
        return table_text(self.records())


def _joined(axes: Sequence[str], labels: Labels, plain: str = "") -> str:
    """Return labels in one line, with the names of their axes except for the axis
    ``plain``.
    """
    words = [
        label if axis == plain else short_label(axis, label)
        for axis, label in zip(axes, labels, strict=True)
        if label
    ]
    return one_line(", ".join(words), 80)


def _axes(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the names of the row axes and of the column axes."""
    names = [axis.name for axis in plan.grid.axes if axis.name != SEED]
    rows = list(plan.grid.options.rows) or names[:1]
    # An axis that does not apply to all runs is a row axis: as a column it would leave
    # gaps.
    rows += [
        name
        for name in names
        if name not in rows and not all(name in point.labels for point in plan.points)
    ]
    several = [axis.name for axis in plan.grid.axes if len(axis.values) > 1]
    return rows, [name for name in names if name not in rows and name in several]
