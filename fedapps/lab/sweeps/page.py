"""The plots and the HTML report of a sweep: its tables, curves over rounds or the plots
of its file, failed runs.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fedapps.formats import one_line, seconds_text
from fedapps.lab.charts import html
from fedapps.lab.charts.chart_script import RELOAD, SCRIPT
from fedapps.lab.charts.drawing import Figure
from fedapps.lab.charts.html import Html
from fedapps.lab.charts.theme import Theme
from fedapps.lab.results.grid_plots import KINDS, PlotSpec, Runs, drawn
from fedapps.lab.results.parts import PagePlot, charts, figures as drawn_parts, write_figures
from fedapps.lab.results.run_measures import curve_of, read_measure
from fedapps.lab.sweeps.grid import SEED
from fedapps.lab.sweeps.plan import Plan, short_label
from fedapps.lab.sweeps.tables import Results
from fedapps.records.files import write_text
from fedapps.records.reader import RunFolder


def parts(results: Results) -> list[PagePlot]:
    """Return the plots of a sweep's page: those that its file names, else the first
    measure with several evaluations over the rounds.
    """
    measures = ", ".join(read_measure(measure).name for measure in results.measures)
    title = f"{results.plan.title}: {measures}".replace("{", "{{").replace("}", "}}")
    return [
        PagePlot(spec.file, f"{title} {KINDS[spec.kind]}", partial(_requested, spec=spec))
        for spec in results.plan.grid.options.plot or _usual(results)
    ]


def _usual(results: Results) -> list[PlotSpec]:
    for measure in results.measures:
        one = read_measure(measure)
        if any(len(curve_of(run, one)[0]) > 1 for run in results.runs):
            return [PlotSpec("rounds", (measure,), name="curves")]
    return []


def figures(results: Results) -> dict[str, Figure]:
    """Return the sweep's plots by file name; plots without data are left out."""
    return drawn_parts(parts(results), results)


def _requested(results: Results, theme: Theme, spec: PlotSpec) -> Figure | None:
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
            "Lines show means over seeds. Bands and bars go from the lowest to the highest seed."
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
    # Other cells, such as those of ``sweep.printed``, come from the file: text.
    tables = results.tables(lambda text: Html(f"<b>{html.text(text)}</b>"))
    return [(name, html.table(header, rows)) for name, header, rows in tables]


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
