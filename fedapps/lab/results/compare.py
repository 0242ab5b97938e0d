"""Compares runs, from their folders alone: one table, plots, one self-contained page.

`comparison_table.py` decides what is compared with what. This module writes the result
for the terminal, as CSV and as HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table

from fedapps.errors import UserError
from fedapps.formats import one_line
from fedapps.lab.charts import html
from fedapps.lab.charts.drawing import Figure
from fedapps.lab.charts.html import Html
from fedapps.lab.results.comparison_table import (
    Column,
    Row,
    cell_texts,
    columns_of,
    has_result,
    header,
    rows_of,
    terminal_table,
    winners,
)
from fedapps.lab.results.gains import Gains, gains_over, records, reference_of
from fedapps.lab.results.parts import COMPARISON, PLOTS, Shown, charts, figures, sections
from fedapps.lab.results.run_measures import same_clients
from fedapps.lab.results.sections import Section, table_text
from fedapps.lab.results.seeds import WHO
from fedapps.records.files import write_text
from fedapps.records.reader import RunFolder, read_run
from fedapps.records.uncertainty import SHARE


@dataclass(frozen=True)
class Compared:
    """A comparison of runs: rows, columns, and the further content of the page.
    ``out``: the folder of its files, if they were written.
    """

    rows: list[Row]
    columns: list[Column]
    shown: Shown
    out: Path = Path()

    @property
    def report(self) -> Path:
        """The page."""
        return self.out / "report.html"

    @property
    def csv(self) -> Path:
        """The file of the :attr:`records`."""
        return self.out / "comparison.csv"

    @property
    def table(self) -> Table:
        """The table for a terminal."""
        return terminal_table(self.rows, self.columns)

    @cached_property
    def sections(self) -> list[Section]:
        """The tables below the main one."""
        return sections(COMPARISON, self.shown)

    @property
    def gains(self) -> Sequence[Gains]:
        """The clients' gains over the reference."""
        return self.shown.gains[2] if self.shown.gains else ()

    def figures(self) -> dict[str, Figure]:
        """The plots by file name."""
        return figures(PLOTS[COMPARISON], self.shown.groups)

    def records(self) -> list[dict[str, Any]]:
        """One row per setting, with every number at full precision. With several seeds,
        each KEY also has `KEY-over-seeds-std`.
        """
        keys = list(dict.fromkeys(key for row in self.rows for key in row.values))
        spread = {
            key
            for key in keys
            if any(row.values.get(key, (0, None))[1] is not None for row in self.rows)
        }
        out = []
        for row in self.rows:
            method, state = (row.runs[0].method, row.runs[0].state) if row.runs else ("", "")
            seeds = " ".join(one_line(str(run.seed)) for run in row.runs)
            record: dict[str, Any] = {
                "label": row.label,
                "method": method,
                "seeds": seeds,
                "state": state,
            }
            for key in keys:
                mean, std = row.values.get(key, (None, None))
                record |= (
                    {key: mean, f"{key}-over-seeds-std": std} if key in spread else {key: mean}
                )
            out.append(record)
        return out

    def html(self) -> Html:
        """The table for a page; `comparison_table.winners` are bold."""
        best = winners(self.rows, self.columns)

        def cell(row: Row, column: Column) -> Html:
            mean, std = map(html.text, cell_texts(self.rows, row, column))
            shown = f"<b>{mean}</b>" if (row.label, column.key) in best else mean
            return Html(f"{shown}<br><small>{std}</small>" if std else shown)

        body = [
            [
                Html(html.text(row.label) + _remark_html(row)),
                *(cell(row, column) for column in self.columns),
            ]
            for row in self.rows
        ]
        return html.table(["method", *(header(self.rows, column) for column in self.columns)], body)


def compared(
    run_dirs: Sequence[Path | str], share: float = SHARE, reference: Path | str | None = None
) -> Compared:
    """Compares the runs in `run_dirs` without writing files. Arguments and errors are
    those of `compare`.
    """
    if not 0 < share <= 1:
        raise UserError(f"--worst {share:g}: must be above 0 and at most 1")
    # `results/*` also matches the folder of an earlier comparison
    given = [path for path in run_dirs if not (Path(path) / "comparison.csv").exists()]
    rows = rows_of(_read([*given, *([reference] if reference else [])]))
    columns = columns_of(rows)
    against = reference_of(rows, Path(reference) if reference else None)
    measure, gains = gains_over(rows, against, reference is not None) if against else ("", [])
    numbers = {one.row.label: one.numbers() for one in gains}
    rows = [replace(row, values=row.values | numbers.get(row.label, {})) for row in rows]
    shown_gains = (measure, against, gains) if against and gains else None
    return Compared(rows, columns, Shown(rows, share, shown_gains))


def compare(
    run_dirs: Sequence[Path | str],
    out: Path | str | None = None,
    share: float = SHARE,
    reference: Path | str | None = None,
) -> Compared:
    """Compares the runs in `run_dirs` and writes comparison.csv, gains.csv and
    report.html.

    Args:
        run_dirs: results folders. The order is kept; a folder given twice counts once.
        out: the folder for the files; default: `comparison` beside the first run.
        share: the share of the clients that counts as the worst.
        reference: the run that gains are measured against; it is added to the others.
            Default: the first run of method local.

    Raises:
        UserError: no folder was given, a folder holds no run, a run has no evaluation,
            or `out` is the folder of a run.
    """
    return write_comparison(compared(run_dirs, share, reference), out)


def write_comparison(compared: Compared, out: Path | str | None = None) -> Compared:
    """Writes the files of a comparison, and replaces those of an earlier one. `out` and
    errors: see `compare`.
    """
    paths = [run.path for row in compared.rows for run in row.runs]
    folder = Path(out) if out is not None else paths[0].resolve().parent / "comparison"
    if folder.resolve() in {path.resolve() for path in paths}:
        raise UserError(
            f"compare: {folder} is the folder of a run, whose report would be overwritten: choose "
            "another --out"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"compare: {folder} is a file: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gains.csv").unlink(missing_ok=True)
    if compared.gains:
        write_text(folder / "gains.csv", table_text(records(compared.gains)))
    written = replace(compared, out=folder)
    write_text(written.report, _html(compared))
    write_text(written.csv, table_text(compared.records()))
    return written


def _read(run_dirs: Sequence[Path | str]) -> list[RunFolder]:
    paths = list({Path(run_dir).resolve(): Path(run_dir) for run_dir in run_dirs}.values())
    if not paths:
        raise UserError("compare: no folder given. Give the results folder of at least one run.")
    runs = [read_run(path) for path in paths]
    for run in runs:
        if not has_result(run):
            raise UserError(
                f"{run.path} has no finished evaluation ({run.state} after {run.rounds_completed} "
                "rounds). Continue the run with --resume, or omit it."
            )
    return runs


def _html(compared: Compared) -> str:
    rows = compared.rows
    tasks = list(dict.fromkeys(run.subject for r in rows for run in r.runs))
    heading = "Comparison of runs"
    notes = ["Means over clients, each on its own test set; std is over clients."]
    if any(column.key.endswith("parity-gap") for column in compared.columns):
        notes.append("Gap: best minus worst client.")
    if any(len(row.runs) > 1 for row in rows):
        notes.append(
            "± is the sample standard deviation over seeds. In the plot, the band reaches from "
            "the lowest to the highest seed."
        )
        notes.append(
            "Bold: better than every other row, in all 95 % intervals of the difference, paired "
            "by seed, of at least three seeds. "
            + WHO[all(same_clients(run) for row in rows for run in row.runs)]
        )
    if not all(row.complete for row in rows):
        notes.append("A run that did not complete shows its last evaluation and is never bold.")
    folders = [
        (row.label, one_line(str(run.seed)), run.state, run.path.resolve().name)
        for row in rows
        for run in row.runs
    ]
    table = html.table(["method", "seed", "state", "folder"], folders, 4)
    return html.page(
        heading,
        [
            html.header(heading, ", ".join(tasks), " ".join(notes)),
            html.panel(compared.html()),
            *(section.as_html() for section in compared.sections),
            html.heading("Plots"),
            *charts(PLOTS[COMPARISON], compared.shown.groups).values(),
            html.heading("Details"),
            html.collapsible("Runs", str(len(folders)), table),
        ],
    )


def _remark_html(row: Row) -> str:
    if not row.remark:
        return ""
    style = "quiet" if row.complete else f"tag {row.runs[0].state}"
    return f'<br><span class="{style}">{html.text(row.remark)}</span>'
