"""Figures: panels in a grid with a legend below, the position of every line and text,
and the common style of all plots.

The packages that use this module decide what is drawn. `canvas.py` turns figures into
SVG, `files.py` into files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.formats import is_percent, metric_name, three_digits
from fedapps.lab.charts import canvas
from fedapps.lab.charts.axes import Axis, Panel, Style, Table, rectangle
from fedapps.lab.charts.canvas import Area, Dots, Line, Points, Shape, Text, text_width
from fedapps.lab.charts.theme import THEME, Colour, Theme

# points between a panel and the texts of its ticks, and between these and the axis's
# label
_GAP = 4.0
_BORDER = (7.0, 5.0)  # around every panel with its texts: beside it, and above and below
_LINE = 1.25  # height of a line of text, relative to its font
_NOTE = 8.0  # font of a panel's note
_KEY = 9.0  # width of a colour key
# a legend's font, width of a sample, space between columns
_LEGEND, _HANDLE, _SPACE = 9.5, 21.0, 16.0


#: Where the data of a panel lie: left, top, width, height.
Frame = tuple[float, float, float, float]


@dataclass(frozen=True)
class Placed:
    """A figure on its canvas: its shapes, the entries of its legend by label, and the
    frame of each panel.
    """

    shapes: list[Shape]
    entries: list[tuple[str, list[Shape]]]
    frames: list[Frame]


@dataclass
class Figure:
    """Panels in a grid, row by row, on a canvas of `size` points (width, height).
    `legend`: labels, each with the shapes it explains.
    """

    size: tuple[float, float]
    columns: int
    panels: list[Panel]
    legend: list[tuple[str, list[Shape]]] = field(default_factory=list)

    def shapes(self) -> list[Shape]:
        """All shapes, placed on the canvas."""
        placed = self.placed()
        return placed.shapes + [shape for _, shapes in placed.entries for shape in shapes]

    def placed(self) -> Placed:
        """All shapes with their positions on the canvas."""
        theme = self.panels[0].theme
        legend, high = _legend(self.legend, self.size, theme.ink)
        width, height = self.size[0], self.size[1] - high
        rows = -(-len(self.panels) // self.columns)
        rough = (width / self.columns - 50, height / rows - 45)
        grid = [_Laid(panel, *rough) for panel in self.panels]
        lefts, rights = (
            [
                max(laid.sides[side] for laid in grid[column :: self.columns])
                for column in range(self.columns)
            ]
            for side in (0, 2)
        )
        tops, bottoms = (
            [
                max(
                    laid.sides[side] for laid in grid[row * self.columns : (row + 1) * self.columns]
                )
                for row in range(rows)
            ]
            for side in (1, 3)
        )
        wide = (width - sum(lefts) - sum(rights) - 2 * _BORDER[0] * self.columns) / self.columns
        tall = (height - sum(tops) - sum(bottoms) - 2 * _BORDER[1] * rows) / rows
        placed: list[Shape] = []
        frames: list[Frame] = []
        for index, laid in enumerate(grid):
            row, column = divmod(index, self.columns)
            left = (
                sum(lefts[: column + 1])
                + sum(rights[:column])
                + column * wide
                + (2 * column + 1) * _BORDER[0]
            )
            top = (
                sum(tops[: row + 1]) + sum(bottoms[:row]) + row * tall + (2 * row + 1) * _BORDER[1]
            )
            placed += laid.placed(left, top, wide, tall)
            frames.append((left, top, wide, tall))
        return Placed(placed, legend, frames)


class _Laid:
    """A panel of roughly the given size: its limits, its ticks, and the space for its
    texts.
    """

    def __init__(self, panel: Panel, width: float, height: float) -> None:
        self.panel = panel
        (self.x_low, self.x_high), (self.y_low, self.y_high) = panel.limits()
        self.xs, self.x_texts = panel.x.marks(self.x_low, self.x_high, width, True)
        self.ys, self.y_texts = panel.y.marks(self.y_low, self.y_high, height, False)
        lying = not panel.x.upright
        self.x_height = max(
            (_LINE * panel.x.size if lying else text_width(t, panel.x.size) for t in self.x_texts),
            default=0.0,
        )
        self.y_width = max((text_width(text, panel.y.size) for text in self.y_texts), default=0.0)
        self.key = _Laid(panel.key, _KEY, height) if panel.key else None

    @cached_property
    def sides(self) -> tuple[float, float, float, float]:
        """The space for the texts on the left, above, on the right and below, in
        points.
        """
        panel = self.panel
        if panel.hidden:
            return 0.0, 0.0, 0.0, 0.0
        lines = panel.heading.count("\n") + 1 if panel.heading else 0
        above = 6 + _LINE * lines * panel.heading_size if lines else _GAP
        above += _LINE * _NOTE if panel.note else 0
        right = (
            text_width(self.x_texts[-1], panel.x.size) / 2 - _BORDER[0]
            if self.x_texts and not panel.x.upright
            else 0.0
        )
        if self.key:
            right = 2 * _GAP + _KEY + self.key.sides[0]
        return (
            self.y_width + _GAP + (_LINE * panel.y.label_size + _GAP if panel.y.label else 0),
            above,
            max(0.0, right),
            self.x_height + _GAP + (_LINE * panel.x.label_size + 1 if panel.x.label else 0),
        )

    def placed(self, left: float, top: float, width: float, height: float) -> Iterator[Shape]:
        """All shapes of the panel with its axes and texts. The arguments are the frame
        of the data.
        """
        panel, theme = self.panel, self.panel.theme
        if panel.hidden:
            return
        bottom, right = top + height, left + width
        start, end = (top, bottom) if panel.y.down else (bottom, top)

        def place(points: Points) -> Points:
            shares = (points - (self.x_low, self.y_low)) / (
                self.x_high - self.x_low,
                self.y_high - self.y_low,
            )
            return np.clip(shares, 0, 1) * (width, end - start) + (left, start)

        xs = [float(place(np.array([[x, self.y_low]]))[0, 0]) for x in self.xs]
        ys = [float(place(np.array([[self.x_low, y]]))[0, 1]) for y in self.ys]
        if panel.y.grid:
            yield from (_straight(left, y, right, y, theme.grid) for y in ys)
        if panel.x.grid:
            yield from (_straight(x, top, x, bottom, theme.grid) for x in xs)
        for shape in panel.shapes:
            if isinstance(shape, Area):
                yield replace(shape, rings=tuple(map(place, shape.rings)))
            else:
                yield replace(shape, points=place(shape.points))
        if self.key:
            yield from self.key.as_key(right + 2 * _GAP, top, height)
        yield _straight(left, bottom, right, bottom, theme.muted)
        yield from self._ticks(xs, ys, left, bottom)
        yield from self._labels(left, top, width, height)

    def _ticks(
        self, xs: Sequence[float], ys: Sequence[float], left: float, bottom: float
    ) -> Iterator[Text]:
        x, y, muted = self.panel.x, self.panel.y, self.panel.theme.muted
        for place, text in zip(xs, self.x_texts, strict=bool(self.x_texts)):
            if x.upright:
                yield _text(
                    place + 0.36 * x.size, bottom + _GAP, text, x.size, muted, "end", upright=True
                )
            else:
                yield _text(place, bottom + _GAP + 0.85 * x.size, text, x.size, muted, "middle")
        for place, text in zip(ys, self.y_texts, strict=bool(self.y_texts)):
            yield _text(left - _GAP, place + 0.36 * y.size, text, y.size, muted, "end")

    def _labels(self, left: float, top: float, width: float, height: float) -> Iterator[Text]:
        panel, muted = self.panel, self.panel.theme.muted
        if panel.x.label:
            y = top + height + self.sides[3] - 0.3 * panel.x.label_size
            yield _text(left + width / 2, y, panel.x.label, panel.x.label_size, muted, "middle")
        if panel.y.label:
            x = left - self.sides[0] + 0.95 * panel.y.label_size
            yield _text(
                x,
                top + height / 2,
                panel.y.label,
                panel.y.label_size,
                muted,
                "middle",
                upright=True,
            )
        if panel.note:
            yield _text(left, top - 3, panel.note, _NOTE, muted)
        lines = panel.heading.split("\n") if panel.heading else []
        for index, line in enumerate(lines):
            y = (
                top
                - self.sides[1]
                + (index + 1) * _LINE * panel.heading_size
                - 0.2 * panel.heading_size
            )
            yield _text(left, y, line, panel.heading_size, panel.theme.ink, bold=True)

    def as_key(self, left: float, top: float, height: float) -> Iterator[Shape]:
        """The shapes of a colour key: the same panel, with its texts on the right."""
        mirrored = left + _KEY + _GAP
        for shape in self.placed(left, top, _KEY, height):
            if not isinstance(shape, Text):
                yield shape
            elif shape.upright:
                x = mirrored + self.y_width + _GAP + 0.95 * shape.size
                yield replace(shape, points=np.array([[x, shape.points[0, 1]]]))
            else:
                yield replace(
                    shape, points=np.array([[mirrored, shape.points[0, 1]]]), anchor="start"
                )


def _legend(
    entries: Sequence[tuple[str, Sequence[Shape]]], size: tuple[float, float], colour: Colour
) -> tuple[list[tuple[str, list[Shape]]], float]:
    """The legend in the middle of the lower border of a canvas of `size`, and its
    height.
    """
    if not entries:
        return [], 0.0
    widths = [_HANDLE + 7 + text_width(label, _LEGEND) for label, _ in entries]
    columns = 3 if sum(len(label) for label, _ in entries) < 70 else 2
    while columns > 1 and _table_width(widths, columns) > size[0] - 2 * _BORDER[0]:
        columns -= 1
    rows = -(-len(entries) // columns)
    height, line = 1.4 * _LEGEND * rows + _BORDER[1], 1.4 * _LEGEND
    left, placed = (size[0] - _table_width(widths, columns)) / 2, []
    for first in range(0, len(entries), rows):  # column by column
        for row, (label, samples) in enumerate(entries[first : first + rows]):
            middle = size[1] - height + (row + 0.5) * line
            text = _text(left + _HANDLE + 7, middle + 0.36 * _LEGEND, label, _LEGEND, colour)
            placed.append((label, [*(_sample(sample, left, middle) for sample in samples), text]))
        left += max(widths[first : first + rows]) + _SPACE
    return placed, height + 3


def _table_width(widths: Sequence[float], columns: int) -> float:
    rows = -(-len(widths) // columns)
    parts = [max(widths[first : first + rows]) for first in range(0, len(widths), rows)]
    return sum(parts) + _SPACE * (len(parts) - 1)


def _sample(shape: Shape, left: float, middle: float) -> Shape:
    """The sample before a label: a short line, a patch or a disc as in the picture."""
    right = left + _HANDLE
    if isinstance(shape, Area):
        patch = np.array(
            [
                [left, middle - 3.4],
                [right, middle - 3.4],
                [right, middle + 3.4],
                [left, middle + 3.4],
            ]
        )
        return replace(shape, rings=(patch,))
    if isinstance(shape, Dots):
        return replace(shape, points=np.array([[(left + right) / 2, middle]]))
    return replace(shape, points=np.array([[left, middle], [right, middle]]))


def _straight(x0: float, y0: float, x1: float, y1: float, colour: Colour) -> Line:
    return Line(np.array([[x0, y0], [x1, y1]]), colour, 0.8)


def _text(
    x: float, y: float, text: str, size: float, colour: Colour, anchor: str = "start", **look: bool
) -> Text:
    return Text(np.array([[x, y]], float), text, size, colour, anchor, **look)


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
