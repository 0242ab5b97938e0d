"""The plots and the HTML report of a sweep: curves over rounds, final values, all
tables, failed runs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.formats import is_percent, one_line, seconds_text
from fedapps.lab.charts import html
from fedapps.lab.charts.canvas import FORMS
from fedapps.lab.charts.chart_script import RELOAD, SCRIPT
from fedapps.lab.charts.drawing import heat, legend, panels, title
from fedapps.lab.charts.html import Html
from fedapps.lab.charts.layout import Figure
from fedapps.lab.charts.theme import Colour, Theme
from fedapps.lab.results.grid_plots import KINDS, MAX_PANELS, PlotSpec, Runs, drawn
from fedapps.lab.results.parts import PagePlot, charts, write_figures
from fedapps.lab.results.parts import figures as drawn_parts
from fedapps.lab.results.run_measures import curve_of, read_measure
from fedapps.lab.sweeps.grid import SEED
from fedapps.lab.sweeps.plan import Plan, short_label
from fedapps.lab.sweeps.tables import Results
from fedapps.lab.sweeps.texts import best_of, heading
from fedapps.records.files import write_text
from fedapps.records.reader import RunFolder

_MARKERS = tuple(FORMS)
# the same in both schemes
_SHADES = tuple(
    Colour(shade, shade)
    for shade in (
        "#f7fbff",
        "#deebf7",
        "#c6dbef",
        "#9ecae1",
        "#6baed6",
        "#4292c6",
        "#2171b5",
        "#08519c",
        "#08306b",
    )
)
_ON_DARK, _ON_LIGHT = Colour("#ffffff", "#ffffff"), Colour("#14324d", "#14324d")


def parts(results: Results) -> list[PagePlot]:
    """Return the plots of a sweep's page: those that its file names, else the usual
    ones.
    """
    measures = ", ".join(read_measure(measure).name for measure in results.measures)

    def plot(name: str, words: str, draw: Callable[..., Figure | None], *more: Any) -> PagePlot:
        title = f"{results.plan.title}: {measures} {words}".replace("{", "{{").replace("}", "}}")
        return PagePlot(name, title, lambda shown, theme: draw(shown, *more, theme))

    if specs := results.plan.grid.options.plot:
        return [plot(spec.file, KINDS[spec.kind], _requested, spec) for spec in specs]
    return [
        plot("curves", "over rounds", _curves),
        plot("values", "at the end", _values),
        plot("grid", "at the end, as a grid", _heat),
    ]


def figures(results: Results) -> dict[str, Figure]:
    """Return the sweep's plots by file name; plots without data are left out."""
    return drawn_parts(parts(results), results)


def _requested(results: Results, spec: PlotSpec, theme: Theme) -> Figure | None:
    """Return a plot that the file names."""
    axes = {axis.name: axis for axis in results.plan.grid.axes}
    if spec.kind != "parameter":
        return drawn(spec, results.measures, _columns(results), {}, theme)
    if spec.x not in axes:
        return None
    lines: dict[str, list[RunFolder]] = {}
    for point in results.plan.points:
        others = [
            short_label(axis, label)
            for axis, label in point.labels.items()
            if axis not in (spec.x, SEED)
        ]
        if (run := results.runs_by_name.get(point.name)) and spec.x in point.labels:
            lines.setdefault(f"{', '.join(others)}\0{point.labels[spec.x]}", []).append(run)
    settings = axes[spec.x].values.items()
    numbers = {
        label: float(value)
        for label, one in settings
        for value in one.values()
        if isinstance(value, int | float)
    }
    return drawn(spec, results.measures, [("", lines)], numbers, theme)


def _columns(results: Results) -> list[tuple[str, dict[str, Runs]]]:
    """Return the runs of each row, in each column."""
    return [
        (
            results.column_name(column),
            {results.row_name(row): results.entry(row, column).runs for row in results.rows},
        )
        for column in results.columns
    ]


def _curves(results: Results, theme: Theme) -> Figure | None:
    """Return the curves of the first measure with several evaluations over the rounds:
    one panel per column.
    """
    for measure in results.measures:
        one = read_measure(measure)
        if any(len(curve_of(run, one)[0]) > 1 for run in results.runs):
            spec = PlotSpec("rounds", (measure,))
            columns = _columns(results)
            named = [(name or f"{heading(measure)} over rounds", lines) for name, lines in columns]
            return drawn(spec, [measure], named, {}, theme)
    return None


def _values(results: Results, theme: Theme) -> Figure | None:
    """Return one panel per measure, with the rows on the y axis and one marker per
    column: the mean over seeds, with the range.
    """
    if not results.runs or len(results.entries) < 2:
        return None
    measures = results.measures[:4]
    rows, columns = results.rows, results.columns[: len(_MARKERS)]
    height = max(2.6, 0.3 * len(rows) + 1.5)
    figure, axes = panels(1, len(measures), (max(6.2, 3.3 * len(measures) + 1.6), height), theme)
    for panel, measure in zip(axes, measures, strict=True):
        scale = 100 if is_percent(read_measure(measure).unit) else 1
        for index, column in enumerate(columns):
            shift = 0.16 * (index - (len(columns) - 1) / 2)
            marks = [
                (height, results.entry(row, column).values(measure))
                for height, row in enumerate(rows)
            ]
            marks = [
                (height, [scale * value for value in values]) for height, values in marks if values
            ]
            if not marks:
                continue
            means = [float(np.mean(values)) for _, values in marks]
            lines = [height + shift for height, _ in marks]
            colour = theme.series[index % len(theme.series)]
            starts, ends = (
                [(reach(v), y) for (_, v), y in zip(marks, lines, strict=True)]
                for reach in (min, max)
            )
            panel.whiskers(starts, ends, colour, 1.4, series=results.column_name(column))
            panel.dots(means, lines, colour, 6, results.column_name(column), _MARKERS[index])
        title(panel, heading(measure), 10.5)
        panel.y.low, panel.y.high, panel.y.down = -0.5, len(rows) - 0.5, True
        panel.y.names, panel.by_point = [results.row_name(row) for row in rows], True
        panel.y.ticks = (
            range(len(rows)),
            [results.row_name(row)[:34] for row in rows] if panel is axes[0] else [],
        )
    legend(figure, axes[0])
    return figure


def _is_grid(results: Results) -> bool:
    """Return whether the last row axis and the last column axis are both numeric with
    at least 3 values.
    """
    sides = (results.row_axes[-1:], results.column_axes[-1:])
    axes = [axis for axis in results.plan.grid.axes if (axis.name,) in map(tuple, sides)]
    return len(axes) == 2 and all(
        len(axis.values) > 2
        and all(
            len(one) == 1 and isinstance(value, int | float)
            for one in axis.values.values()
            for value in one.values()
        )
        for axis in axes
    )


def _heat(results: Results, theme: Theme) -> Figure | None:
    """Return heat maps of the mean over seeds, one panel for each combination of values
    of the other axes, or ``None`` unless both sides are numbers.
    """
    if not results.runs or not _is_grid(results):
        return None
    measure = results.measures[0]
    rows, columns = results.rows, results.columns
    kinds = list(dict.fromkeys((row[:-1], column[:-1]) for row in rows for column in columns))[
        :MAX_PANELS
    ]
    wide = min(3, len(kinds))
    high = -(-len(kinds) // wide)
    figure, axes = panels(high, wide, (max(6.2, 4.4 * wide), 3.5 * high), theme, len(kinds))
    means = [
        mean for entry in results.entries.values() if (mean := entry.mean(measure)) is not None
    ]
    scale = 100 if is_percent(read_measure(measure).unit) else 1
    tops, lefts = (list(dict.fromkeys(labels[-1] for labels in side)) for side in (columns, rows))
    for panel, (row_kind, column_kind) in zip(axes, kinds, strict=False):
        table = np.full((len(lefts), len(tops)), np.nan)
        for i, left in enumerate(lefts):
            for j, top in enumerate(tops):
                mean = results.entry((*row_kind, left), (*column_kind, top)).mean(measure)
                table[i, j] = np.nan if mean is None else mean
        # Dark is better, for measures to maximise and to minimise alike.
        shades = _SHADES[::-1] if best_of(measure) is min else _SHADES
        heat(panel, table, (min(means), max(means)), shades)
        middle = (min(means) + max(means)) / 2
        for (i, j), value in np.ndenumerate(table):
            dark = (value > middle) == (shades == _SHADES)
            if np.isfinite(value):
                panel.text(j, i, f"{scale * value:.4g}", 9, _ON_DARK if dark else _ON_LIGHT)
        names = [label for label in (*row_kind, *column_kind) if label]
        title(panel, ", ".join([*names, heading(measure)]), 10.5)
        panel.x.names, panel.y.names, panel.percent = tops, lefts, scale == 100
        panel.x.ticks, panel.x.label = (range(len(tops)), tops), results.column_axes[-1]
        panel.y.ticks, panel.y.label, panel.y.down = (
            (range(len(lefts)), lefts),
            results.row_axes[-1],
            True,
        )
    return figure


def write_page(
    results: Results, folder: Path, failed: Mapping[str, str], going: bool = False
) -> Path:
    """Write the self-contained ``report.html``, and the plots that the file names as
    ``plots/*.png``. Return the page's path. ``failed``: errors by run name. ``going``:
    whether the sweep goes on; the page then reloads itself, and there are no files.
    """
    if results.plan.grid.options.plot and not going:
        write_figures(folder / "plots", figures(results), "png")
    path = folder / "report.html"
    write_text(path, _html(results, folder, failed, going))
    return path


def _html(results: Results, folder: Path, failed: Mapping[str, str], going: bool) -> str:
    plan = results.plan
    missing = len(results.runs) < len(plan.points)
    ended = "failed" if failed else "interrupted" if missing else "completed"
    state = "running" if going and not failed else ended
    body = [
        html.header(plan.title, "", _subtitle(plan), state, _state(results, failed, going)),
        html.paragraph(results.note(), "quiet"),
    ]
    for name, table in tables_html(results):
        body += [html.heading(name)] * bool(name) + [html.panel(table)]
    if pictures := charts(parts(results), results):
        legend_note = (
            "Lines and markers show means over seeds. Bands and bars go from the lowest to the "
            "highest seed."
        )
        body += [
            html.heading("Plots"),
            html.paragraph(legend_note, "quiet"),
            *pictures.values(),
        ]
    body.append(html.heading("Details"))
    if failed:
        reasons = [(name, one_line(reason, 500)) for name, reason in failed.items()]
        body.append(
            html.collapsible(
                "Failed runs",
                str(len(failed)),
                html.table(["run", "reason"], reasons, 2),
                is_open=True,
            )
        )
    body.append(
        html.collapsible(
            "Settings of all runs", str(len(plan.grid.fixed)), html.pairs(plan.grid.fixed.items())
        )
    )
    axes = [(axis.name, ", ".join(axis.values)) for axis in plan.grid.axes]
    body.append(html.collapsible("What varies", str(len(axes)), html.pairs(axes)))
    rows = _run_table(results, folder if going else None)
    body.append(html.collapsible("Runs", str(len(plan.points)), rows, is_open=going))
    return html.page(plan.title, body, (SCRIPT, RELOAD) if going else (SCRIPT,))


def tables_html(results: Results) -> list[tuple[str, Html]]:
    """Return the tables with their headings."""
    tables = []
    for name, header, rows in results.tables(lambda text: Html(f"<b>{html.text(text)}</b>")):
        # Other cells, such as those of ``sweep.printed``, come from the file: text.
        tables.append((name, html.table(header, rows)))
    return tables


def _subtitle(plan: Plan) -> str:
    varied = [f"{axis.name}: {len(axis.values)}" for axis in plan.grid.axes if len(axis.values) > 1]
    return " · ".join([*varied, f"{len(plan.points)} runs"])


def _state(results: Results, failed: Mapping[str, str], going: bool) -> str:
    done = f"{len(results.runs)} of {len(results.plan.points)} runs finished"
    if going:
        return f"… {done}{f', {len(failed)} failed' if failed else ''}."
    if failed:
        return f"✗ {done}, {len(failed)} failed. Repeat the command to try them again."
    if len(results.runs) < len(results.plan.points):
        return f"✗ {done}. Repeat the command to go on."
    return f"✓ {done}."


def _run_table(results: Results, folder: Path | None) -> Html:
    """Return one row per run, with a link to its report if it has one in ``folder``."""
    runs: dict[str, RunFolder] = {run.path.name: run for run in results.runs}
    rows = []
    for point in results.plan.points:
        run = runs.get(point.name)
        labels = ", ".join(short_label(axis, label) for axis, label in point.labels.items())
        rounds = run.rounds_completed if run else "-"
        seconds = seconds_text(run.numbers["seconds"]) if run else "-"
        where = html.text(f"cells/{point.name}")
        if folder and (folder / where / "report.html").exists():
            where = Html(f'<a href="{where}/report.html">{where}</a>')
        rows.append((labels, rounds, seconds, where))
    return html.table(["run", "rounds", "time", "folder"], rows, 1)
