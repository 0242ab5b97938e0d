"""The plots that a sweep's file can define: lines over rounds, bytes, seconds or
models, clients from worst to best, and others.

A plot has one panel per measure and column of the sweep's table, and one line (or bar)
per row: the mean over seeds, with a band from the lowest to the highest. ``KINDS``
lists the kinds of plots.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_choice, kebab
from fedapps.formats import is_percent, metric_name, sentence
from fedapps.lab.charts.axes import Panel
from fedapps.lab.charts.drawing import (
    Figure,
    label_rounds,
    label_values,
    legend,
    line,
    line_with_range,
    panels,
    title,
)
from fedapps.lab.charts.theme import Colour, Theme
from fedapps.lab.results.fair_plots import client_bars, weights_figure, worst_first
from fedapps.lab.results.run_measures import Measure, curve_of, read_measure, value_of
from fedapps.records.reader import RunFolder

Runs = Sequence[RunFolder]
#: The heading of a panel, and the runs of each of its lines.
Shown = tuple[str, Mapping[str, Runs]]
Floats = NDArray[np.float64]
#: Places (n,) and values (seeds, n).
Curves = tuple[Floats, Floats]

MAX_PANELS = 12
STYLES = ("-", "--", ":", "-.")
#: The content of each kind of plot, for messages and docs/sweep.md.
KINDS = {
    "rounds": "a measure over the rounds",
    "bytes": "a measure over the bytes of all training messages so far, up and down",
    "seconds": "a measure over the seconds so far",
    "clock": "a measure over the seconds of the run's clock, which is simulated in a simulation",
    "models": "a measure over the models that a client has sent and received",
    "clients": "a column of clients.csv, from the worst client to the best, as lines",
    "bars": "the clients' accuracies or AUROC, from worst to best, as bars",
    "parameter": "a measure along the numbers of an axis (`x`)",
    "curve": "what runs measured along a curve of their own, such as lambda-accuracy along lambda",
    "weights": "the weights that the server gave each client, of the first run of each row",
}
#: The label of the x axis for each kind.
X_LABELS = {
    "bytes": "MB, all clients",
    "seconds": "seconds",
    "clock": "seconds by the clock of the run",
    "models": "models sent and received, per client",
    "clients": "share of clients, worst first (%)",
}
#: The quantities that are summed over rounds, and their units.
_SUMMED = {"bytes": (("bytes-up", "bytes-down"), 1e6), "seconds": (("seconds",), 1.0)}


@dataclass(frozen=True)
class PlotSpec:
    """One ``[[sweep.plot]]``.

    ``kind``: one of ``KINDS``. ``measures``: () for the sweep's first measure.
    ``rows``: () for all rows. ``x``: the axis for the kind ``parameter``. ``log``: the
    logarithmic axes, "", "x", "y" or "xy". ``levels``: measures or numbers that are
    drawn as horizontal lines, by their names in the legend. ``relative``: show the
    difference to the mean of all rows. ``slope``: exponent of a dotted line t ** slope,
    only with ``log = "xy"``. ``name``: the name of the file, "" for the kind.
    """

    kind: str
    measures: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    x: str = ""
    log: str = ""
    levels: Mapping[str, str | float] | None = None
    relative: bool = False
    slope: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind = {self.kind!r}: choose one of {', '.join(KINDS)}")
        if self.log not in ("", "x", "y", "xy"):
            raise ValueError(f'log = {self.log!r}: choose one of "x", "y", "xy"')
        if (self.kind == "parameter") != bool(self.x):
            raise ValueError(
                f"kind = {self.kind!r}, x = {self.x!r}: a plot of kind parameter must name its "
                "axis in x, and no other plot may"
            )
        if self.slope and self.log != "xy":
            raise ValueError(f'slope = {self.slope}: add log = "xy", which a slope needs')
        if self.kind not in ("clients", "curve"):
            for text in (*self.measures, *(self.levels or {}).values()):
                if isinstance(text, str):
                    read_measure(text)

    @property
    def file(self) -> str:
        """The name of the file, without its suffix."""
        return self.name or self.kind


def read_plot(table: Any) -> PlotSpec:
    """Return the plot that a table describes. Raises ``ValueError``."""
    if not isinstance(table, dict) or "kind" not in table:
        raise ValueError(f"plot = {table!r}: write each plot as a table [[sweep.plot]] with a kind")
    return PlotSpec(**read_fields(PlotSpec, table, "plot"))


def read_fields(kind: type[Any], table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values of a dataclass's fields from a table of a file. A list becomes
    a tuple, and a single name may be given where there can be several. Raises
    ``ValueError``, for unknown keys with the ``name`` of the table.
    """
    known = {kebab(part.name): part for part in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        check_choice(name, key, known)
        if known[key].type is str and not isinstance(value, str):
            raise ValueError(f"{key} = {value!r}: must be text")
        single = isinstance(value, str) and isinstance(known[key].default, tuple)
        values[known[key].name] = (
            (value,) if single else tuple(value) if isinstance(value, list) else value
        )
    return values


def drawn(
    spec: PlotSpec,
    measures: Sequence[str],
    shown: Sequence[Shown],
    numbers: Mapping[str, float],
    theme: Theme,
) -> Figure | None:
    """Return a plot; ``None`` if no run has the values for it.

    ``measures``: the sweep's measures; the first is shown unless the plot names others.
    ``shown``: the content of the panels, for each measure. ``numbers``: for the kind
    ``parameter``, the number of each label of its axis; the names in ``shown`` are then
    ``LINE\\0LABEL``, and those with the same LINE form one line.
    """
    if spec.rows and spec.kind != "parameter":
        shown = [
            (heading, {row: runs for row, runs in lines.items() if row in spec.rows})
            for heading, lines in shown
        ]
    wanted = list(spec.measures or measures[:1])
    if spec.kind == "bars":
        return client_bars(shown[0][1], theme) if shown else None
    if spec.kind == "weights":
        firsts = (
            run for _, lines in shown for runs in lines.values() for run in runs[:1] if run.weights
        )
        return weights_figure(first, theme) if (first := next(firsts, None)) else None
    return _panels(spec, wanted, shown[: max(1, MAX_PANELS // len(wanted))], numbers, theme)


def _panels(
    spec: PlotSpec,
    wanted: list[str],
    shown: Sequence[Shown],
    numbers: Mapping[str, float],
    theme: Theme,
) -> Figure | None:
    cells = [(text, heading, lines) for text in wanted for heading, lines in shown]
    wide = len(shown) if len(wanted) > 1 and len(shown) > 1 else min(3, len(cells))
    high = -(-len(cells) // wide)
    rows = max((len(lines) for _, lines in shown), default=1)
    size = max(6.2, 4.4 * wide), 3.4 * high + 0.22 * rows / wide + 0.5
    figure, axes = panels(high, wide, size, theme, len(cells))
    names = list(dict.fromkeys(key.partition("\0")[0] for _, lines in shown for key in lines))
    for panel, (text, heading, lines) in zip(axes, cells, strict=False):
        draw_lines(panel, names, points := _lines(spec, text, lines, numbers), theme, spec.log)
        if spec.slope and points:
            _draw_slope(panel, *next(iter(points.values())), spec.slope)
        _label(panel, spec, text, heading, len(cells) > 1)
        for place, (name, level) in enumerate((spec.levels or {}).items()):
            if (value := _level(level, lines)) is not None:
                height = _scaled(np.array([value]), "y" in spec.log)[0]
                panel.level(height, theme.muted, 1.3, STYLES[(place + 2) % 4], name)
    legend(figure, max(axes[: len(cells)], key=lambda panel: len(panel.legend)))
    return figure if any(panel.readings for panel in axes) else None


def _lines(
    spec: PlotSpec, text: str, lines: Mapping[str, Runs], numbers: Mapping[str, float]
) -> dict[str, Curves]:
    if spec.kind == "parameter":
        return _along_parameter(read_measure(text), lines, numbers)
    points = lines_of(spec.kind, text, lines)
    if spec.relative and len(points) > 1:
        stacks = [stack for _, stack in points.values()]
        seeds, places = (min(stack.shape[axis] for stack in stacks) for axis in (0, 1))
        middle = np.mean([stack[:seeds, :places] for stack in stacks], axis=0)
        points = {
            row: (x[:places], stack[:seeds, :places] - middle) for row, (x, stack) in points.items()
        }
    return points


def lines_of(kind: str, measure: str | Measure, rows: Mapping[str, Runs]) -> dict[str, Curves]:
    """Return the line of each row that has one. ``measure``: for the kind ``clients`` a
    column, for ``curve`` a curve.
    """
    lines = {row: line_of(kind, measure, runs) for row, runs in rows.items()}
    return {row: one for row, one in lines.items() if one is not None}


def line_of(kind: str, measure: str | Measure, runs: Runs) -> Curves | None:
    """Return places (n,) and values (seeds, n) of runs; ``None`` if no run has them."""
    if kind == "clients":
        return _sorted(runs, str(measure))
    if kind == "curve":
        return _own_curve(runs, str(measure))
    return _over(kind, runs, read_measure(measure) if isinstance(measure, str) else measure)


def _over(kind: str, runs: Runs, measure: Measure) -> Curves | None:
    """Return the places and the values of runs at the rounds that all of them have."""
    curves = []
    for run in runs:
        places = _places(kind, run)
        curve = zip(*curve_of(run, measure), strict=True)
        if points := {number: value for number, value in curve if number in places}:
            curves.append((places, points))
    common = sorted(set.intersection(*(set(points) for _, points in curves))) if curves else []
    if not common:
        return None
    x = np.mean([[places[number] for number in common] for places, _ in curves], axis=0)
    return x, np.array([[points[number] for number in common] for _, points in curves], float)


def _places(kind: str, run: RunFolder) -> dict[int, float]:
    """Return the position of each round on the x axis."""
    if kind in ("models", "clock"):
        return run.models if kind == "models" else run.clock
    rounds = [record["round"] for record in run.rounds]
    if kind not in _SUMMED:
        return {number: float(number) for number in rounds}
    keys, unit = _SUMMED[kind]
    steps = [sum(float(record.get(key, 0.0)) for key in keys) / unit for record in run.rounds]
    return dict(zip(rounds, accumulate(steps), strict=True))


def _sorted(runs: Runs, column: str) -> Curves | None:
    columns = [values for run in runs if (values := run.column(column))]
    if not columns:
        return None
    share = np.linspace(0, 1, max(map(len, columns)))
    return 100 * share, np.array([worst_first(values, column, len(share)) for values in columns])


def _own_curve(runs: Runs, name: str) -> Curves | None:
    """Return a curve of curves.json over the curve named by its first word, such as
    ``lambda-accuracy`` over ``lambda``.
    """
    axis = name.partition("-")[0]
    curves = [run.curves for run in runs if name in run.curves and axis in run.curves]
    return (np.array(curves[0][axis]), np.array([one[name] for one in curves])) if curves else None


def _along_parameter(
    measure: Measure, lines: Mapping[str, Runs], numbers: Mapping[str, float]
) -> dict[str, Curves]:
    points: dict[str, dict[float, list[float]]] = {}
    for key, runs in lines.items():
        name, _, label = key.partition("\0")
        values = [value for run in runs if (value := value_of(run, measure)) is not None]
        if values and label in numbers:
            points.setdefault(name, {})[numbers[label]] = values
    out = {}
    for name, values_at in points.items():
        seeds = min(map(len, values_at.values()))
        places = sorted(values_at)
        out[name] = np.array(places), np.array([values_at[place][:seeds] for place in places]).T
    return out


def _level(level: str | float, lines: Mapping[str, Runs]) -> float | None:
    if not isinstance(level, str):
        return float(level)
    measure = read_measure(level)
    values = [value_of(run, measure) for runs in lines.values() for run in runs]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def draw_lines(
    panel: Panel, rows: Sequence[str], lines: Mapping[str, Curves], theme: Theme, log: str = ""
) -> None:
    """Draw the line of each row: the mean over its seeds, and the range as a band.
    ``rows``: of the whole figure, so that a row looks alike in all panels, also where
    another one has no line.
    """
    for row, (x, stack) in lines.items():
        x, stack = _scaled(x, "x" in log), _scaled(stack, "y" in log)
        line_with_range(panel, x, stack, *look(rows.index(row), theme), row or " ")


def _draw_slope(panel: Panel, x: Floats, stack: Floats, slope: float) -> None:
    """Draw t ** slope through the middle of a line, on logarithmic axes."""
    x, y = _scaled(x, True), _scaled(stack.mean(0), True)
    known = np.isfinite(x) & np.isfinite(y)
    if known.any():
        middle = len(x[known]) // 2
        ends = np.array([x[known][0], x[known][-1]])
        heights = y[known][middle] + slope * (ends - x[known][middle])
        line(panel, ends, heights, panel.theme.muted, ":", f"t^{slope:.2g}", 1.4)


def look(index: int, theme: Theme) -> tuple[Colour, str]:
    """Return colour and style of the line of a row."""
    return theme.series[index % len(theme.series)], STYLES[index // len(theme.series) % len(STYLES)]


def _scaled(values: Floats, logarithmic: bool) -> Floats:
    """Return the values, or their logarithms (NaN for values that have none)."""
    if not logarithmic:
        return values
    return np.log10(values, out=np.full(np.shape(values), np.nan), where=np.asarray(values) > 0)


def _label(panel: Panel, spec: PlotSpec, text: str, heading: str, several: bool) -> None:
    column = spec.kind in ("clients", "curve")
    key, name = (text, metric_name(text)) if column else ((m := read_measure(text)).unit, m.name)
    label_values(panel, key, "")
    panel.y.label = f"{name} (%)" if is_percent(key) else name
    if spec.relative:
        panel.y.label += ", difference to the mean of all"
    title(panel, ", ".join(filter(None, (heading, sentence(name) if several else ""))), 10.5)
    if spec.kind == "rounds":
        label_rounds(panel)
    else:
        others = {"parameter": spec.x, "curve": text.partition("-")[0]}
        panel.x.label = (X_LABELS | others)[spec.kind]
    for axis, name, limits in zip((panel.x, panel.y), "xy", panel.limits(), strict=True):
        if name in spec.log:
            axis.log, axis.ticks = (
                True,
                _round_powers(*limits, 100.0 if name == "y" and is_percent(key) else 1.0),
            )


def _round_powers(low: float, high: float, scale: float) -> tuple[list[float], list[str]]:
    """Return ticks for a logarithmic axis: 1, 2 and 5 times powers of ten, or only the
    powers. Their texts show ``scale`` times the value.
    """
    shift = math.log10(scale)
    powers = range(math.floor(low + shift), math.ceil(high + shift) + 1)
    for steps, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 4)):
        numbers = [step * 10.0**power for power in powers if power % every == 0 for step in steps]
        shown = [number for number in numbers if low <= math.log10(number) - shift <= high]
        if len(shown) <= 7:
            break
    texts = [f"{number:,.10g}" if 1e-4 <= number < 1e6 else f"{number:.0e}" for number in shown]
    return [math.log10(number) - shift for number in shown], texts
