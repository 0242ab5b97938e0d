"""The table of a comparison: which runs belong together and under which name, the texts
of its cells, and the table for a terminal.

Runs that differ only in the seed become one row: mean ± sample standard deviation over
the seeds. A run that did not complete has its own row and never counts as the best,
since its numbers are those of an earlier round.
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedapps.algorithms.common.measures import LEADING, lower_is_better
from fedapps.formats import (
    LEADING_MEANS,
    byte_scale,
    few,
    is_percent,
    metric_name,
    metric_text,
    one_line,
    percent_text,
    three_digits,
)
from fedapps.lab.results.run_measures import measured, read_measure
from fedapps.lab.results.seeds import Measured, stands_out
from fedapps.records.reader import RunFolder, numbers


@dataclass(frozen=True)
class Column:
    """A number to compare: its key, the header of its column, and whether the highest
    or the lowest value is best.
    """

    key: str
    header: str
    best: Callable[[list[float]], float] | None = None


#: The columns in their order. `rounds-completed` has no best value: more rounds are
#: more work, not a better method.
COLUMNS = (
    Column("accuracy-mean", "mean", max),
    Column("accuracy-std", "std", min),
    Column("accuracy-worst10", "worst 10 %", max),
    Column("accuracy-best10", "best 10 %", max),
    Column("accuracy-worst", "worst", max),
    Column("rmse-mean", "RMSE", min),
    Column("rmse-std", "std", min),
    Column("rmse-worst10", "worst 10 %", min),
    Column("rmse-worst", "worst", min),
    Column("rmse-pooled", "RMSE of all", min),
    Column("mae-pooled", "MAE of all", min),
    Column("r2-pooled", "R² of all", max),
    Column("global-rmse-mean", "global", min),
    Column("concordance-mean", "C", max),
    Column("concordance-std", "std", min),
    Column("concordance-worst10", "worst 10 %", max),
    Column("concordance-worst", "worst", max),
    Column("concordance-pooled", "C of all pairs", max),
    Column("global-concordance-mean", "global", max),
    Column("parity-gap", "gap", min),
    Column("gini", "gini", min),
    Column("ece-mean", "ECE", min),
    Column("global-accuracy-mean", "global", max),
    Column("bytes-up", "up", min),
    Column("bytes-down", "down", min),
    Column("seconds", "time", min),
    Column("rounds-completed", "rounds"),
)
#: These replace the columns of the accuracy if all runs have an area under the ROC
#: curve.
AUROC_COLUMNS = (
    Column("auroc-mean", "AUROC", max),
    Column("auroc-std", "std", min),
    Column("auroc-worst", "worst", max),
    Column("auroc-parity-gap", "gap", min),
    Column("auroc-gini", "gini", min),
    Column("accuracy-mean", "accuracy", max),
)
_OF_ACCURACY = (
    "accuracy-mean",
    "accuracy-std",
    "accuracy-worst10",
    "accuracy-best10",
    "accuracy-worst",
    "parity-gap",
    "gini",
)


#: In the name of a metric, separates a measure from the trivial predictor it belongs
#: to.
REFERENCE = "-of-"
# Settings that are not part of a row's label, since they do not change the results.
_NO_NAME = ("seed", "evaluate-every", "checkpoint-every")


@dataclass(frozen=True)
class Row:
    """One setting: its runs (several if there are several seeds), and for each metric
    the mean and the std over seeds.

    A row without runs is a predictor that needs no training; the runs of the other rows
    measured it.
    """

    label: str
    runs: tuple[RunFolder, ...]
    values: dict[str, tuple[float, float | None]]

    @property
    def complete(self) -> bool:
        """Whether every run of the row completed."""
        return all(run.state == "completed" for run in self.runs)

    @property
    def remark(self) -> str:
        """A remark on the numbers: how many seeds, where an incomplete run stopped, the
        rounds that were chosen by validation samples, and which clients diverged.
        """
        diverged = list(dict.fromkeys(name for run in self.runs for name in run.diverged))
        named = f"diverged, not in the means: {few(diverged, 5)}" if diverged else ""
        if not self.complete:
            run = self.runs[0]
            state = f"{run.state} at {run.rounds_completed}/{run.num_rounds or '?'}"
        else:
            state = f"{len(self.runs)} seeds" if len(self.runs) > 1 else ""
        rounds = ", ".join(str(run.scored_round) for run in self.runs if run.chose_round)
        chosen = f"of round {rounds}, best by validation" if rounds else ""
        return "; ".join(filter(None, (state, chosen, named)))


def has_result(run: RunFolder) -> bool:
    """Whether a run has numbers to compare: an evaluation, or measures over clients in
    its summary.
    """
    return bool(run.evaluation) or any(
        key.split("-")[-1] in ("mean", "std", "worst10", "best10") for key in numbers(run.summary)
    )


def _groups(runs: list[RunFolder]) -> list[list[RunFolder]]:
    """Groups complete runs that have the same settings and different seeds. Every other
    run is alone.
    """
    groups: dict[str, list[list[RunFolder]]] = {}
    for run in runs:
        rest = {key: value for key, value in run.settings.items() if key != "seed"}
        # Without settings, it is unknown whether two runs belong together.
        together = bool(rest) and run.state == "completed" and run.seed is not None
        key = (
            json.dumps(rest, sort_keys=True, default=str)
            if together
            else f"only {run.path.resolve()}"
        )
        alike = groups.setdefault(key, [])
        # The same seed twice is a repetition, not an independent run: averaging it
        # would understate the uncertainty.
        group = next((g for g in alike if all(run.seed != other.seed for other in g)), None)
        if group is None:
            alike.append([run])
        else:
            group.append(run)
    return sorted((g for alike in groups.values() for g in alike), key=lambda g: runs.index(g[0]))


def rows_of(runs: list[RunFolder]) -> list[Row]:
    """One row per setting, in the order of the first run of each."""
    groups = _groups(runs)
    rows = []
    for group, label in zip(groups, _labels(groups), strict=True):
        shared = [
            k for k in group[0].numbers if k != "seed" and all(k in run.numbers for run in group)
        ]
        values: dict[str, tuple[float, float | None]] = {}
        for key in shared:
            samples = [float(run.numbers[key]) for run in group]
            values[key] = math.fsum(samples) / len(samples), std_of(samples)
        rows.append(Row(label, tuple(group), values))
    return rows + _references(rows)


def _references(rows: list[Row]) -> list[Row]:
    """One row per predictor without training. A run's metric ``MEASURE-of-NAME`` is the
    MEASURE of predictor NAME.
    """
    predictors: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
    for row in rows:
        for key, value in row.values.items():
            measure, of, name = key.partition(REFERENCE)
            if of and measure in row.values:
                predictors.setdefault(name, {}).setdefault(measure, []).append(value)

    def agree(values: list[tuple[float, float | None]]) -> bool:
        return all(math.isclose(value[0], values[0][0], rel_tol=1e-6) for value in values)

    # If runs disagree, they used different data, and no single number fits the table.
    same = {
        name: {key: v[0] for key, v in measures.items() if agree(v)}
        for name, measures in predictors.items()
    }
    return [Row(f"{name} (not trained)", (), values) for name, values in same.items() if values]


def std_of(samples: list[float]) -> float | None:
    """Return the sample standard deviation; ``None`` for less than two samples."""
    if len(samples) < 2:
        return None
    return statistics.stdev(samples) if all(map(math.isfinite, samples)) else math.nan


def _labels(groups: list[list[RunFolder]]) -> list[str]:
    """Labels: the method. If several rows share it, also the settings that differ, and
    if none differ, the folder.
    """
    labels = [group[0].method for group in groups]
    for name in {label for label in labels if labels.count(label) > 1}:
        members = [index for index, label in enumerate(labels) if label == name]
        settings = [groups[index][0].settings for index in members]
        keys = list(
            dict.fromkeys(key for table in settings for key in table if key not in _NO_NAME)
        )
        differing = [key for key in keys if len({str(table.get(key)) for table in settings}) > 1]
        for index, table in zip(members, settings, strict=True):
            parts = [f"{key.split('.')[-1]}={table[key]}" for key in differing[:3] if key in table]
            labels[index] = one_line(" ".join([name, *parts]), 80)
    for name in {label for label in labels if labels.count(label) > 1}:
        # A row of several runs has no single folder to be named after.
        for index in [i for i, label in enumerate(labels) if label == name and len(groups[i]) == 1]:
            labels[index] = one_line(f"{name} ({groups[index][0].path.resolve().name})", 120)
    # Folders in different places can have the same name: add a number, so that labels
    # are unique.
    return [
        f"{label} #{i + 1}" if labels.count(label) > 1 else label for i, label in enumerate(labels)
    ]


def columns_of(rows: list[Row]) -> list[Column]:
    """The columns for which at least one row has a value."""
    wanted: tuple[Column, ...] = COLUMNS
    if all("auroc-mean" in row.values for row in rows):
        wanted = (*AUROC_COLUMNS, *(column for column in COLUMNS if column.key not in _OF_ACCURACY))
    new = [
        Column(key, heading, min if lower_is_better(key) else max)
        for key, heading in newcomer_means({key: 0 for row in rows for key in row.values}).items()
    ]
    at = wanted.index(next(column for column in wanted if column.key == "bytes-up"))
    wanted = (*wanted[:at], *new, *wanted[at:])
    columns = [column for column in wanted if any(column.key in row.values for row in rows)]
    # Drop a column that equals another one in all rows: there is a single model for all
    # clients, or the worst tenth is one client.
    alike = [(f"global-{name}-mean", f"{name}-mean") for name in LEADING]
    for key, like in [*alike, *((f"{name}-worst10", f"{name}-worst") for name in LEADING)]:
        if all(row.values.get(key) in (None, row.values.get(like)) for row in rows):
            columns = [column for column in columns if column.key != key]
    if any(column.key in LEADING_MEANS for column in columns):
        return columns
    # Another kind of task: put the measures of its evaluations before the costs. Only
    # for a loss or an error is it known which value is better.
    known = {column.key for column in COLUMNS}
    keys = dict.fromkeys(
        k for row in rows for run in row.runs for k in run.evaluation if k not in known
    )
    of_tests = [key for key in keys if "train" not in key.split("-") and REFERENCE not in key]
    return [
        *(
            Column(key, metric_name(key), min if lower_is_better(key) else None)
            for key in of_tests[:6]
        ),
        *columns,
    ]


def header(rows: list[Row], column: Column) -> str:
    """The header with its unit, so that the cells hold bare numbers."""
    if column.key.startswith("bytes"):
        return f"{column.header} {_scale(rows, column)[1]}"
    if column.key == "seconds":
        return f"{column.header} s"
    return (
        f"{column.header} %"
        if is_percent(column.key) and "%" not in column.header
        else column.header
    )


def _scale(rows: list[Row], column: Column) -> tuple[float, str]:
    return byte_scale(
        max((abs(row.values[column.key][0]) for row in rows if column.key in row.values), default=0)
    )


def cell_texts(rows: list[Row], row: Row, column: Column) -> tuple[str, str]:
    """The mean and, for several seeds, `±` and the standard deviation with the same
    number of decimals.
    """
    if column.key not in row.values:
        return "-", ""
    mean, std = row.values[column.key]
    if column.key == "rounds-completed":
        return f"{mean:g}", ""
    if column.key.startswith("bytes"):
        divisor = _scale(rows, column)[0]
        mean, std = mean / divisor, None if std is None else std / divisor
        shown = three_digits(mean)
    elif column.key == "seconds":
        shown = three_digits(mean)
    elif is_percent(column.key):
        shown, std = percent_text(mean, unit=False), None if std is None else 100 * std
    else:
        shown = metric_text(column.key, mean)
    decimals = len(shown.partition(".")[2]) if shown.partition(".")[2].isdigit() else 3
    return shown, "" if std is None else f"±{std:.{decimals}f}"


def winners(rows: list[Row], columns: list[Column]) -> set[tuple[str, str]]:
    """Return (label, key) of the values that are better than those of every other row,
    beyond the noise (``stands_out``).

    One or two seeds therefore have no winner. A predictor that nobody trained has the
    same value for every seed.
    """
    best: set[tuple[str, str]] = set()
    for column in (column for column in columns if column.best is not None):
        key = column.key
        rivals = [row for row in rows if row.complete and key in row.values]
        seeds = {run.seed for row in rivals for run in row.runs}
        values = {
            row.label: measured({run.seed: run for run in row.runs}, read_measure(key))
            if row.runs
            else Measured(dict.fromkeys(seeds, row.values[key][0]))
            for row in rivals
        }
        smaller = column.best is min
        best |= {(label, key) for label in values if stands_out(label, values, smaller)}
    return best


def terminal_table(rows: list[Row], columns: list[Column]) -> Table:
    """The table for a terminal. Units are in the headers and seeds on a second line, so
    that it fits in 80 columns.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    lines = [line for row in rows for line in _label(row).plain.split("\n")]
    longest = max(len(word) for line in lines for word in line.split())
    table.add_column("method", min_width=min(24, longest), overflow="fold")
    rounds = {row.values["rounds-completed"][0] for row in rows if "rounds-completed" in row.values}
    shown = [column for column in columns if column.key != "rounds-completed" or len(rounds) > 1]
    for column in shown:
        table.add_column(header(rows, column).replace(" ", "\n", 1), justify="right", no_wrap=True)
    best = winners(rows, columns)
    several = any(len(row.runs) > 1 for row in rows)
    for index, row in enumerate(rows):
        cells = []
        for column in shown:
            mean, std = cell_texts(rows, row, column)
            # Text, not markup: names may come from files.
            cell = Text(mean, style="bold" if (row.label, column.key) in best else "")
            cells.append(cell.append(f"\n{std}", style="not bold dim") if std else cell)
        table.add_row(_label(row), *cells)
        if several and index < len(rows) - 1:
            table.add_row()
    return table


def _label(row: Row) -> Text:
    label = Text(row.label, style="" if row.complete else "yellow")
    return (
        label.append(f"\n{row.remark}", style="dim" if row.complete else "yellow")
        if row.remark
        else label
    )


#: Leading scores, whose means new clients have, too.
SCORES = "accuracy|auroc|rmse|concordance"
_MEAN = re.compile(rf"new-({SCORES})((?:-\d+)?)-mean")


def newcomer_means(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of new clients' mean accuracies (AUROC, RMSE) among ``keys``,
    sorted by epochs, each with its heading.
    """
    epochs = {
        key: int(match[2].lstrip("-") or 0) for key in keys if (match := _MEAN.fullmatch(key))
    }
    return {
        key: f"new, {_epochs(epochs[key])}"
        for key in sorted(epochs, key=lambda key: (key.startswith("new-auroc"), epochs[key]))
    }


def _epochs(number: int) -> str:
    return "not at all" if not number else "1 epoch" if number == 1 else f"{number} epochs"
