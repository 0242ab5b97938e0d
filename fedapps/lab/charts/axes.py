"""Axes with limits and ticks, and panels with the shapes between them. `drawing.py`
places them on a canvas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.lab.charts.canvas import Area, Dots, Line, Points, Shape, text_width
from fedapps.lab.charts.theme import MOST, THEME, Colour, Theme

#: Dash patterns: lengths of dashes and gaps, in widths of the line.
_DASHES = {"-": (), "--": (3.7, 1.6), ":": (1.0, 1.65), "-.": (6.4, 1.6, 1.0, 1.6)}

# Larger and infinite values are ignored for the limits: their differences may overflow.
_HUGE = 1e300

Style = str | Sequence[float]


@dataclass
class Axis:
    """One axis of a panel. Values that are None are computed from the data.

    low, high: limits. most: maximum number of ticks. whole: ticks only at whole
    numbers. ticks: positions with their names. format: makes the texts of ticks. size:
    font size of these texts, 0 for none. upright: the texts read upwards. grid: lines
    at the ticks. down: values grow from top to bottom. The following describe the
    values that a chart shows at the pointer: percent: they are fractions, shown in per
    cent. log: they are logarithms to base ten. names: the names of 0, 1, 2, ...
    """

    label: str = ""
    label_size: float = 10.0
    low: float | None = None
    high: float | None = None
    most: int | None = None
    whole: bool = False
    ticks: tuple[Sequence[float], Sequence[str]] | None = None
    format: Callable[[Sequence[float]], list[str]] | None = None
    size: float = 9.0
    upright: bool = False
    grid: bool = True
    down: bool = False
    percent: bool = False
    log: bool = False
    names: Sequence[str] = ()

    def limits(self, values: list[Points], touches_zero: bool) -> tuple[float, float]:
        """The ends of the axis: `low` and `high` if set, else the range of the values
        with a margin. With `touches_zero` there is no margin below 0, where bars begin.
        """
        usable = np.concatenate([part[np.abs(part) < _HUGE] for part in values] or [np.zeros(0)])
        low, high = (float(usable.min()), float(usable.max())) if usable.size else (0.0, 1.0)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
        low, high = low if touches_zero and low == 0 else low - margin, high + margin
        low, high = low if self.low is None else self.low, high if self.high is None else self.high
        return low, high if high > low else low + (abs(low) or 1.0)

    def marks(
        self, low: float, high: float, length: float, horizontal: bool
    ) -> tuple[list[float], list[str]]:
        """Positions and texts of the ticks between two limits, so few that the texts do
        not overlap. `length`: of the axis, in points.
        """
        if self.ticks is not None:
            return list(self.ticks[0]), list(self.ticks[1]) if self.size else []
        for most in range(self.most or max(2, min(9, int(length / 22))), 0, -1):
            places = round_numbers(low, high, most, self.whole)
            texts = (self.format or plain)(places) if self.size else []
            width = sum(text_width(text, self.size) + self.size for text in texts)
            if not horizontal or width <= length:
                break
        return places, texts


def round_numbers(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Evenly spaced round numbers within the limits, in at most `most` steps; `whole`:
    whole numbers.
    """
    exact = (high - low) / most
    power = 10.0 ** math.floor(math.log10(exact))
    steps = [factor * power for factor in ((1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10))]
    step = next((step for step in steps if step >= exact * (1 - 1e-9)), steps[-1])
    step = max(1.0, step) if whole else step
    return [
        count * step
        for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def plain(values: Sequence[float]) -> list[str]:
    """Numbers with as many decimals as needed to distinguish them; powers of ten if
    they are huge or tiny.
    """
    step = (
        min((abs(b - a) for a, b in pairwise(values)), default=abs(values[0]) if values else 1) or 1
    )
    if max(map(abs, values), default=0) >= 1e6 or step < 1e-4:
        texts = [f"{value:.4g}" for value in values]
    else:
        decimals = next(
            digits for digits in range(8) if abs(step - round(step, digits)) < 1e-3 * step
        )
        texts = [f"{value:.{decimals}f}" for value in values]
    return [text.replace("-", "\N{MINUS SIGN}") for text in texts]


@dataclass(frozen=True)
class Reading:
    """Values that a chart shows at x (n,): y (n,), or a range from low (n,) to high
    (n,). `series`: as in shapes.
    """

    series: str
    colour: Colour
    x: Points
    y: Points | None = None
    low: Points | None = None
    high: Points | None = None


@dataclass(frozen=True)
class Table:
    """Values (rows, columns) that a chart shows for the cells between edges on the x
    axis (columns + 1) and the y axis (rows + 1).
    """

    x: Points
    y: Points
    values: Points


@dataclass
class Panel:
    """One pair of axes and its content. `shapes` are in the data's units; an infinite
    position means the panel's border.
    """

    theme: Theme = THEME
    heading: str = ""
    heading_size: float = 12.0
    note: str = ""  # a line below the heading
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    shapes: list[Shape] = field(default_factory=list)
    legend: list[tuple[str, list[Shape]]] = field(default_factory=list)
    key: "Panel | None" = None  # the colour key: a narrow panel on the right of this one
    hidden: bool = False
    most: int = MOST  # maximum number of points per line
    readings: list[Reading] = field(default_factory=list)
    table: Table | None = None

    def _add(self, shape: Line | Area | Dots, label: str) -> None:
        shape = replace(shape, series=label) if label else shape
        self.shapes.append(shape)
        if label:
            self.legend.append((label, [shape]))

    def line(
        self,
        x: Any,
        y: Any,
        colour: Colour,
        width: float = 2.0,
        style: Style = "-",
        label: str = "",
        dots: float = 0,
        readable: bool = True,
    ) -> None:
        """A line, with discs of size `dots` at its points and gaps where a number is
        missing. `readable`: the chart shows its values at the pointer.
        """
        points = np.stack([np.asarray(x, float), np.asarray(y, float)], axis=1)
        points = points[extremes(points[:, 1], self.most)]
        dash = tuple(width * part for part in (_DASHES[style] if isinstance(style, str) else style))
        known = np.isfinite(points).all(1)
        cuts = np.flatnonzero(np.diff(known)) + 1
        parts = [
            part for part in np.split(points, cuts) if len(part) and np.isfinite(part[0]).all()
        ]
        drawn: list[Shape] = [Line(part, colour, width, dash, label) for part in parts]
        if dots and parts:
            drawn.append(Dots(points[known], colour, dots, series=label))
        self.shapes += drawn
        if readable and drawn:
            self.readings.append(Reading(label, colour, points[known][:, 0], points[known][:, 1]))
        if label and drawn:
            self.legend.append((label, drawn[:1] + drawn[len(parts) :]))

    def level(
        self, value: float, colour: Colour, width: float, style: Style = "-", label: str = ""
    ) -> None:
        """A horizontal line through the whole panel."""
        dash = tuple(width * part for part in (_DASHES[style] if isinstance(style, str) else style))
        self._add(Line(np.array([[-np.inf, value], [np.inf, value]]), colour, width, dash), label)

    def dots(self, x: Any, y: Any, colour: Colour, size: float, label: str = "") -> None:
        """Discs, `size` points across."""
        points = np.stack([np.asarray(x, float), np.asarray(y, float)], axis=1)
        self._add(Dots(points, colour, size), label)
        if label:
            self.readings.append(Reading(label, colour, points[:, 0], points[:, 1]))

    def band(
        self,
        x: Any,
        low: Any,
        high: Any,
        colour: Colour,
        alpha: float = 0.16,
        label: str = "",
        series: str = "",
    ) -> None:
        """The area between two lines. `series`: the label of the line it belongs to, if
        it has no `label`.
        """
        x, low, high = (np.asarray(values, float) for values in (x, low, high))
        known = np.isfinite(low) & np.isfinite(high)
        x, low, high = x[known], low[known], high[known]
        shown = np.union1d(extremes(low, self.most), extremes(high, self.most))
        x, low, high = x[shown], low[shown], high[shown]
        if len(x):
            ring = np.stack([np.append(x, x[::-1]), np.append(low, high[::-1])], axis=1)
            self._add(Area((ring,), colour, alpha, series=series), label)
            self.readings.append(Reading(label or series, colour, x, low=low, high=high))

    def bars(
        self,
        middles: Any,
        heights: Any,
        width: float,
        colour: Colour,
        label: str = "",
    ) -> None:
        """Bars that start at zero; `width` is in units of the x axis."""
        ends = zip(
            np.asarray(middles) - width / 2, np.asarray(middles) + width / 2, heights, strict=True
        )
        self._add(
            Area(
                tuple(rectangle(left, 0, right, top) for left, right, top in ends),
                colour,
                crisp=True,
            ),
            label,
        )
        self.readings.append(
            Reading(label, colour, np.asarray(middles, float), np.asarray(heights, float))
        )

    def steps(
        self, edges: Any, heights: Any, colour: Colour, width: float, label: str = ""
    ) -> None:
        """The outline of bars (n) between edges (n + 1)."""
        x, y = np.repeat(edges, 2)[1:-1], np.repeat(heights, 2)
        self.line(x, y, colour, width, label=label, readable=False)
        self.readings.append(Reading(label, colour, (edges[1:] + edges[:-1]) / 2, heights))

    def blocks(self, edges: Any, heights: Any, colour: Colour, label: str = "") -> None:
        """Bars (n) between edges (n + 1) as one shape, so that none is too thin to
        see.
        """
        edges, heights = np.asarray(edges, float), np.asarray(heights, float)
        middles, shown = (edges[1:] + edges[:-1]) / 2, extremes(heights, self.most)
        edges, heights = np.append(edges[:-1][shown], edges[-1]), heights[shown]
        x, tops = np.repeat(edges, 2), np.concatenate([[0], np.repeat(heights, 2), [0]])
        self._add(Area((np.stack([x, tops], axis=1),), colour, crisp=True), label)
        self.readings.append(Reading(label, colour, middles[shown], heights))

    def whiskers(
        self, x: Points, low: Points, high: Points, colour: Colour, width: float, label: str
    ) -> None:
        """Vertical lines from low (n,) to high (n,)."""
        ends = np.stack([np.stack([x, low], 1), np.stack([x, high], 1)], 1)
        lines = [Line(pair, colour, width, series=label) for pair in ends]
        self.shapes += lines
        self.legend.append((label, [*lines[:1]]))
        self.readings.append(Reading(label, colour, x, low=low, high=high))

    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ends of both axes."""
        areas = [ring for shape in self.shapes if isinstance(shape, Area) for ring in shape.rings]
        points = areas + [shape.points for shape in self.shapes if not isinstance(shape, Area)]
        on_zero = any(isinstance(shape, Area) and shape.crisp for shape in self.shapes)
        return self.x.limits([part[:, 0] for part in points], False), self.y.limits(
            [part[:, 1] for part in points], on_zero
        )


def extremes(values: Points, most: int = MOST) -> NDArray[np.intp]:
    """Indices, ascending, of about `most` of the values (n,) that draw the same line:
    the ends, and the lowest and highest value of each section.
    """
    if len(values) <= most:
        return np.arange(len(values))
    parts = np.array_split(np.arange(len(values)), most // 2)
    lowest = [
        part[np.argmin(np.where(np.isnan(values[part]), np.inf, values[part]))] for part in parts
    ]
    highest = [
        part[np.argmax(np.where(np.isnan(values[part]), -np.inf, values[part]))] for part in parts
    ]
    return np.unique([0, *lowest, *highest, len(values) - 1])


def rectangle(left: float, bottom: float, right: float, top: float) -> Points:
    """The corners (4, 2) of a rectangle."""
    return np.array([[left, bottom], [left, top], [right, top], [right, bottom]], float)
