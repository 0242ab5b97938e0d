"""The common style of all plots: axes, lines, legends.

The packages that use this module decide what is drawn. `canvas.py` turns figures into
SVG, `files.py` into files.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.formats import is_percent, metric_name, three_digits
from fedapps.lab.charts import canvas
from fedapps.lab.charts.axes import Axis, Panel, Style, Table, rectangle
from fedapps.lab.charts.layout import Figure
from fedapps.lab.charts.theme import THEME, Colour, Theme

_SHADES = 128


def svg(figure: Figure, dark: bool = False) -> bytes:
    """The figure as SVG, for a notebook with a light or a dark page."""
    return canvas.svg(figure.shapes(), figure.size, figure.panels[0].theme.surface, dark)


def one_panel(heading: str, theme: Theme = THEME) -> tuple[Figure, Panel]:
    """A figure in the size of all plots of a run, with its heading."""
    figure, axes = panels(1, 1, (6.2, 4.0), theme)
    title(axes[0], heading)
    return figure, axes[0]


def panels(
    rows: int,
    columns: int,
    size: tuple[float, float],
    theme: Theme = THEME,
    number: int | None = None,
) -> tuple[Figure, list[Panel]]:
    """A figure with a grid of panels, row by row; `size` is in inches. With a `number`
    of panels, the remaining places of the last row stay empty.
    """
    places = range(rows * columns)
    axes = [Panel(theme, hidden=number is not None and place >= number) for place in places]
    return Figure((72 * size[0], 72 * size[1]), columns, axes), axes


def title(axes: Panel, text: str, size: float = 12) -> None:
    """The heading of one panel."""
    axes.heading, axes.heading_size = text, size


def line(
    axes: Panel,
    x: Any,
    y: Any,
    colour: Colour,
    style: Style = "-",
    label: str = "",
    width: float = 2.0,
) -> None:
    """A line, with dots if these are few enough to be distinguished."""
    axes.line(x, y, colour, width, style, label, dots=4.6 if len(x) <= 30 else 0)


def line_with_range(
    axes: Panel, x: Any, stack: np.ndarray, colour: Colour, style: str, label: str
) -> None:
    """The mean of `stack` (runs, points) as a line, and the range from the lowest to
    the highest run as a band.
    """
    if len(stack) > 1:
        axes.band(x, stack.min(axis=0), stack.max(axis=0), colour, series=label)
    line(axes, x, stack.mean(axis=0), colour, style, label)


def heat(
    axes: Panel,
    table: NDArray[np.float64],
    ends: tuple[float, float],
    edges: tuple[Any, Any] | None = None,
) -> None:
    """A table (rows, columns) in the theme's colours; NaN has no colour.

    `ends`: the values of the first and the last colour. `edges`: the borders of columns
    (columns + 1) and rows (rows + 1); by default, the middles of the cells are 0, 1, 2,
    ...
    """
    low, high = ends
    shades = gradient((axes.theme.grid, axes.theme.series[0], axes.theme.ink), _SHADES)
    columns, rows = edges or [np.arange(count + 1) - 0.5 for count in table.shape[::-1]]
    share = np.nan_to_num(np.clip((table - low) / (high - low or 1), 0, 1)) * (_SHADES - 1)
    index = np.where(np.isnan(table), -1, np.round(share)).astype(int)
    rings: dict[int, list[canvas.Points]] = {}
    for row, (top, bottom) in enumerate(pairwise(rows)):
        cuts = [0, *(np.flatnonzero(np.diff(index[row])) + 1).tolist(), table.shape[1]]
        for first, last in pairwise(cuts):  # neighbours of the same colour form one rectangle
            rings.setdefault(int(index[row, first]), []).append(
                rectangle(columns[first], bottom, columns[last], top)
            )
    axes.shapes += [
        canvas.Area(tuple(rectangles), shades[shade], crisp=True)
        for shade, rectangles in rings.items()
        if shade >= 0
    ]
    axes.table = Table(np.asarray(columns, float), np.asarray(rows, float), table)
    axes.x.low, axes.x.high, axes.y.low, axes.y.high = columns[0], columns[-1], rows[0], rows[-1]
    axes.x.grid = axes.y.grid = False


def heat_key(axes: Panel, ends: tuple[float, float], label: str) -> Panel:
    """Adds the panel beside `axes` that explains the theme's colours, and returns
    it.
    """
    axes.key = Panel(axes.theme, x=Axis(size=0), y=Axis(label=label))
    edges = np.linspace(
        *(ends if ends[0] < ends[1] else (ends[0] - 0.5, ends[0] + 0.5)), _SHADES + 1
    )
    heat(axes.key, ((edges[1:] + edges[:-1]) / 2)[:, None], ends, edges=([0, 1], edges))
    return axes.key


def name_cells(axis: Axis, names: Sequence[str], shown: Sequence[str]) -> None:
    """Names the places 0, 1, 2, ... of an axis; `shown`: the same, short enough to be
    written beside them.
    """
    axis.names, axis.ticks = names, (range(len(shown)), shown)
    axis.size = 6.5 if len(shown) > 15 else 8.5


def gradient(colours: Sequence[Colour], number: int) -> list[Colour]:
    """A gradient of `number` colours from the first to the last of `colours`, through
    those between them.
    """
    light, dark = (_mixed(scheme, number) for scheme in zip(*colours, strict=True))
    return list(map(Colour, light, dark))


def _mixed(colours: Sequence[str], number: int) -> list[str]:
    parts = np.array(
        [[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in colours], float
    )
    at = np.linspace(0, len(colours) - 1, number)
    mixed = np.stack(
        [np.interp(at, np.arange(len(colours)), parts[:, channel]) for channel in range(3)], axis=1
    )
    return ["#" + "".join(f"{round(part):02x}" for part in colour) for colour in mixed]


def label_rounds(axes: Panel) -> None:
    """Labels the x axis with whole rounds."""
    axes.x.label, axes.x.most, axes.x.whole = "round", 8, True


def label_values(axes: Panel, key: str, of_what: str) -> None:
    """Labels the y axis with the metric `key`, fractions in per cent."""
    unit = ""
    if is_percent(key):
        unit, axes.y.format, axes.y.percent = " (%)", percents, True
    axes.y.label = ", ".join(filter(None, (metric_name(key), of_what))) + unit


def percents(ticks: Sequence[float]) -> list[str]:
    """Fractions in per cent, without decimals if all are whole."""
    whole = all(abs(100 * tick - round(100 * tick)) < 1e-6 for tick in ticks)
    return [f"{100 * tick:.0f}" if whole else three_digits(100 * tick) for tick in ticks]


def legend(figure: Figure, axes: Panel) -> None:
    """Puts the legend of `axes` below the figure, if anything has a label."""
    figure.legend = axes.legend
