"""The plots and the HTML report of a sweep: curves over rounds, final values, all
tables, failed runs.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedapps.charts import html
from fedapps.charts.canvas import FORMS
from fedapps.charts.charts import chart, palette
from fedapps.charts.drawing import (
    heat,
    label_rounds,
    label_values,
    legend,
    line_with_range,
    panels,
    png,
    title,
)
from fedapps.charts.html import Html
from fedapps.charts.layout import Figure
from fedapps.charts.theme import DARK, LIGHT, Theme
from fedapps.formats import is_percent, one_line, seconds_text
from fedapps.records.reader import RunFolder
from fedapps.results.grid_plots import KINDS, MAX_PANELS, PlotSpec, drawn, look
from fedapps.results.run_measures import read_measure
from fedapps.sweeps.grid import SEED
from fedapps.sweeps.plan import Plan, short_label
from fedapps.sweeps.tables import Labels, Results
from fedapps.sweeps.texts import best_of, heading

_MARKERS = tuple(FORMS)
_SHADES = (
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


def figures(results: Results, theme: Theme) -> dict[str, Figure]:
    """Return the sweep's plots by file name: those that its file asks for, else the
    usual ones; plots without data are left out.
    """
    if specs := results.plan.grid.options.plot:
        asked = {spec.file: _asked(results, spec, theme) for spec in specs}
        return {name: figure for name, figure in asked.items() if figure is not None}
    out = {}
    if curve := next(
        (measure for measure in results.measures if _has_curve(results, measure)), None
    ):
        out["curves"] = _curves(results, curve, theme)
    shown = [
        measure
        for measure in results.measures
        if any(entry.values(measure) for entry in results.entries.values())
    ]
    if shown and len(results.entries) > 1:
        out["values"] = _values(results, shown[:4], theme)
    if shown and (grid := _grid(results)):
        out["grid"] = _heat(results, shown[0], grid, theme)
    return out


def _asked(results: Results, spec: PlotSpec, theme: Theme) -> Figure | None:
    """Return a plot that the file asks for."""
    axes = {axis.name: axis for axis in results.plan.grid.axes}
    if spec.kind != "parameter":
        shown = [
            (
                results.column_name(column),
                {results.row_name(row): _runs(results, row, column) for row in results.rows},
            )
            for column in results.columns
        ]
        return drawn(spec, results.measures, shown, {}, theme)
    if spec.x not in axes:
        return None
    lines: dict[str, list[RunFolder]] = {}
    for point in results.plan.points:
        others = [
            short_label(axis, label)
            for axis, label in point.labels.items()
            if axis not in (spec.x, SEED)
        ]
        if (run := results.found.get(point.name)) and spec.x in point.labels:
            lines.setdefault(f"{', '.join(others)}\0{point.labels[spec.x]}", []).append(run)
    settings = axes[spec.x].values.items()
    numbers = {
        label: float(value)
        for label, one in settings
        for value in one.values()
        if isinstance(value, int | float)
    }
    return drawn(spec, results.measures, [("", lines)], numbers, theme)


def _runs(results: Results, row: Labels, column: Labels) -> tuple[RunFolder, ...]:
    entry = results.entry(row, column)
    return entry.runs if entry else ()


def _has_curve(results: Results, measure: str) -> bool:
    return any(
        len(run.series("evaluate").get(read_measure(measure).key, ((),))[0]) > 1
        for run in results.runs
    )


def _curves(results: Results, measure: str, theme: Theme) -> Figure:
    """Return one panel per column and one line per row: the mean over seeds, and a band
    from the lowest to the highest.
    """
    columns = results.columns[:MAX_PANELS]
    wide = min(3, len(columns))
    high = -(-len(columns) // wide)
    figure, axes = panels(
        high,
        wide,
        (max(6.2, 4.4 * wide), 3.4 * high + 0.22 * len(results.rows) / wide + 0.5),
        theme,
    )
    for panel, column in zip(axes, columns, strict=False):
        for index, row in enumerate(results.rows):
            entry = results.entry(row, column)
            key, runs = read_measure(measure).key, entry.runs if entry else ()
            over_rounds = [
                dict(zip(*s, strict=True)) for run in runs if (s := run.series("evaluate").get(key))
            ]
            if over_rounds:
                common = sorted(set.intersection(*(set(values) for values in over_rounds)))
                stack = np.array([[values[r] for r in common] for values in over_rounds])
                line_with_range(panel, common, stack, *look(index, theme), results.row_name(row))
        title(panel, results.column_name(column) or f"{heading(measure)} over rounds", 11)
        label_rounds(panel)
        label_values(panel, read_measure(measure).unit, "")
    for panel in axes[len(columns) :]:
        panel.hidden = True
    fullest = max(axes[: len(columns)], key=lambda panel: len(panel.legend))
    legend(figure, fullest)
    return figure


def _values(results: Results, measures: list[str], theme: Theme) -> Figure:
    """Return one panel per measure with the rows on the y axis and one marker per
    column: mean over seeds, and range.
    """
    rows, columns = results.rows, results.columns[: len(_MARKERS)]
    height = max(2.6, 0.3 * len(rows) + 1.5)
    figure, axes = panels(1, len(measures), (max(6.2, 3.3 * len(measures) + 1.6), height), theme)
    for panel, measure in zip(axes, measures, strict=True):
        scale = 100 if is_percent(read_measure(measure).unit) else 1
        for index, column in enumerate(columns):
            shift = 0.16 * (index - (len(columns) - 1) / 2)
            found = [
                (height, entry.values(measure))
                for height, row in enumerate(rows)
                if (entry := results.entry(row, column))
            ]
            found = [
                (height, [scale * value for value in values]) for height, values in found if values
            ]
            if not found:
                continue
            means = [float(np.mean(values)) for _, values in found]
            lines = [height + shift for height, _ in found]
            colour = theme.series[index % len(theme.series)]
            starts, ends = (
                [(reach(v), y) for (_, v), y in zip(found, lines, strict=True)]
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


def _grid(results: Results) -> tuple[list[float], list[float]] | None:
    """Return the values of the last row axis and of the last column axis; ``None``
    unless both are numeric with at least 3 values.
    """
    if not results.row_axes or not results.column_axes:
        return None
    axes = {axis.name: axis for axis in results.plan.grid.axes}
    found = []
    for name in (results.row_axes[-1], results.column_axes[-1]):
        values = [value for settings in axes[name].values.values() for value in settings.values()]
        if (
            len(values) < 3
            or len(values) != len(axes[name].values)
            or not all(isinstance(v, int | float) for v in values)
        ):
            return None
        found.append([float(value) for value in values])
    return found[0], found[1]


def _heat(
    results: Results, measure: str, grid: tuple[list[float], list[float]], theme: Theme
) -> Figure:
    """Return heat maps of the mean over seeds, one panel for each combination of values
    of the other axes.
    """
    rows, columns = results.rows, results.columns
    kinds = list(dict.fromkeys((row[:-1], column[:-1]) for row in rows for column in columns))[
        :MAX_PANELS
    ]
    wide = min(3, len(kinds))
    high = -(-len(kinds) // wide)
    figure, axes = panels(high, wide, (max(6.2, 4.4 * wide), 3.5 * high), theme)
    means = [
        mean for entry in results.entries.values() if (mean := entry.mean(measure)) is not None
    ]
    scale = 100 if is_percent(read_measure(measure).unit) else 1
    tops, lefts = (list(dict.fromkeys(labels[-1] for labels in side)) for side in (columns, rows))
    for panel, (row_kind, column_kind) in zip(axes, kinds, strict=False):
        table = np.full((len(lefts), len(tops)), np.nan)
        for i, left in enumerate(lefts):
            for j, top in enumerate(tops):
                entry = results.entry((*row_kind, left), (*column_kind, top))
                mean = entry.mean(measure) if entry else None
                table[i, j] = np.nan if mean is None else mean
        # Dark is better, for measures to maximise and to minimise alike.
        shades = _SHADES[::-1] if best_of(measure) is min else _SHADES
        edges = np.arange(len(tops) + 1) - 0.5, np.arange(len(lefts) + 1) - 0.5
        heat(panel, edges, table, (min(means), max(means)), shades)
        middle = (min(means) + max(means)) / 2
        for (i, j), value in np.ndenumerate(table):
            dark = (value > middle) == (shades == _SHADES)
            if np.isfinite(value):
                panel.text(j, i, f"{scale * value:.4g}", 9, "#ffffff" if dark else "#14324d")
        names = [label for label in (*row_kind, *column_kind) if label]
        title(panel, ", ".join([*names, heading(measure)]), 10.5)
        panel.x.names, panel.y.names, panel.percent = tops, lefts, scale == 100
        panel.x.ticks, panel.x.label = (range(len(tops)), tops), results.column_axes[-1]
        panel.y.ticks, panel.y.label, panel.y.down = (
            (range(len(lefts)), lefts),
            results.row_axes[-1],
            True,
        )
    for panel in axes[len(kinds) :]:
        panel.hidden = True
    return figure


# --- the report -----------------------------------------------------------------------


def write_page(results: Results, folder: Path, failed: Mapping[str, str]) -> Path:
    """Write ``plots/*.png`` and the self-contained ``report.html``; return its path.
    ``failed``: reasons by run name.
    """
    light, dark = figures(results, LIGHT), figures(results, DARK)
    (folder / "plots").mkdir(exist_ok=True)
    for name, figure in light.items():
        (folder / "plots" / f"{name}.png").write_bytes(png(figure))
    words = {"curves": "over rounds", "values": "at the end", "grid": "at the end, as a grid"}
    words |= {spec.file: KINDS[spec.kind] for spec in results.plan.grid.options.plot}
    pictures = [
        chart(
            name,
            f"{results.plan.title}: "
            f"{', '.join(read_measure(measure).name for measure in results.measures)} "
            f"{words[name]}",
            light[name],
            dark[name],
        )
        for name in light
    ]
    path = folder / "report.html"
    path.write_text(_html(results, pictures, failed), encoding="utf-8")
    return path


def _html(results: Results, pictures: list[Html], failed: Mapping[str, str]) -> str:
    plan = results.plan
    body = [
        Html(f"<header><h1>{html.text(plan.title)}</h1>"),
        html.paragraph(_subtitle(plan), "quiet"),
        Html(
            f'<div class="state {"failed" if failed else "completed"}">'
            f"{html.text(_state(results, failed))}</div></header>"
        ),
        html.paragraph(results.note(), "quiet"),
    ]
    for name, table in tables_html(results):
        body += [html.heading(name)] * bool(name) + [Html(f'<div class="panel">{table}</div>')]
    if pictures:
        legend_note = (
            "Lines and marks are means over seeds, bands and bars go from the lowest to the "
            "highest seed."
        )
        body += [html.heading("Plots"), html.paragraph(legend_note, "quiet"), *pictures]
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
    body.append(html.collapsible("Runs", str(len(plan.points)), _run_table(results)))
    return html.page(plan.title, body, palette(pictures))


def tables_html(results: Results) -> list[tuple[str, Html]]:
    """Return the tables with their headings."""
    found = []
    for name, header, rows in results.tables(lambda text: f"<b>{text}</b>"):
        # Names of cases come from the file and must be escaped: only the mark of the
        # best value is markup.
        cells = [[row[0], *(_best_or_text(text) for text in row[1:])] for row in rows]
        found.append((name, html.table(header, cells)))
    return found


def _best_or_text(text: str) -> Html:
    return Html(text) if text.startswith("<b>") else html.text(text)


def _subtitle(plan: Plan) -> str:
    varied = [f"{axis.name}: {len(axis.values)}" for axis in plan.grid.axes if len(axis.values) > 1]
    return " · ".join([*varied, f"{len(plan.points)} runs"])


def _state(results: Results, failed: Mapping[str, str]) -> str:
    done = f"{len(results.runs)} of {len(results.plan.points)} runs finished"
    return (
        f"✗ {done}, {len(failed)} failed: the same command goes on with them."
        if failed
        else f"✓ {done}."
    )


def _run_table(results: Results) -> Html:
    runs: dict[str, RunFolder] = {run.path.name: run for run in results.runs}
    rows = []
    for point in results.plan.points:
        run = runs.get(point.name)
        told = ", ".join(short_label(axis, label) for axis, label in point.labels.items())
        rows.append(
            (
                told,
                run.rounds_completed if run else "-",
                seconds_text(run.numbers["seconds"]) if run else "-",
                f"cells/{point.name}",
            )
        )
    return html.table(["run", "rounds", "time", "folder"], rows, 1)
