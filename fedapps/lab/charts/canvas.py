"""Shapes in the plane, and their SVG elements.

Positions are in points (1/72 inch) from the upper left corner. A plot has about a
hundred shapes, so it takes milliseconds, and a run need not import a plotting library
at its end.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedapps.lab.charts.theme import Colour

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

Points = NDArray[np.float64]

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_MEASURED = 64  # pixels of the font that measures texts


@dataclass(frozen=True)
class Line:
    """A line through points (n, 2). `dash`: lengths of dashes and gaps; () is a solid
    line.

    `series`, here and below: the legend's label of the series that the shape belongs
    to, or "".
    """

    points: Points
    colour: Colour
    width: float
    dash: tuple[float, ...] = ()
    series: str = ""


@dataclass(frozen=True)
class Area:
    """Filled polygons, each (n, 2), of one colour. `crisp`: all edges are horizontal or
    vertical and stay sharp.
    """

    rings: tuple[Points, ...]
    colour: Colour
    alpha: float = 1.0
    crisp: bool = False
    series: str = ""


@dataclass(frozen=True)
class Dots:
    """Discs around points (n, 2), `size` across."""

    points: Points
    colour: Colour
    size: float
    series: str = ""


@dataclass(frozen=True)
class Text:
    """One line of text. `points` (1, 2): its start, middle or end on the baseline.
    `size`: the font size. `upright`: it reads upwards.
    """

    points: Points
    text: str
    size: float
    colour: Colour
    anchor: str = "start"
    bold: bool = False
    upright: bool = False


Shape = Line | Area | Dots | Text


def text_width(text: str, size: float, bold: bool = False) -> float:
    """The width of a text in points, in DejaVu Sans, which is wider than nearly every
    font that browsers use.
    """
    return _width(printable(text), bold) * size


@lru_cache(4096)
def _width(text: str, bold: bool) -> float:
    return _font(bold).getlength(text) / _MEASURED


@cache
def _font(bold: bool) -> "FreeTypeFont":
    from PIL import ImageFont

    package = find_spec("matplotlib")  # only its fonts are used; it is not imported
    assert package is not None
    assert package.origin is not None
    fonts = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf"
    file = fonts / f"DejaVuSans{'-Bold' * bold}.ttf"
    return ImageFont.truetype(str(file), _MEASURED, layout_engine=ImageFont.Layout.BASIC)


def printable(text: str) -> str:
    """Untrusted text without characters that cannot be drawn: line breaks, control
    characters, lone surrogates.
    """
    return "".join(char if char.isprintable() else " " for char in text)


def svg(
    shapes: Iterable[Shape], size: tuple[float, float], background: Colour, dark: bool = False
) -> bytes:
    """The shapes as an SVG file of `size` points (width, height), in the light or the
    dark scheme.
    """
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}pt" height="{height:g}pt" '
        f'viewBox="0 0 {width:g} {height:g}" '
        f'font-family="{_FONTS}" fill="none" stroke-linejoin="round">\n'
        f'<path fill="{background.of(dark)}" d="M0 0H{width:g}V{height:g}H0z"/>\n'
    )
    body = "\n".join(element(shape, shape.colour.of(dark)) for shape in shapes)
    return (head + body + "\n</svg>\n").encode()


def element(shape: Shape, colour: str, mark: str = "") -> str:
    """The shape as an SVG element. `colour`: an SVG colour. `mark`: more attributes,
    each after a space.
    """
    if isinstance(shape, Line):
        ends = (
            f' stroke-dasharray="{" ".join(f"{part:.2f}" for part in shape.dash)}"'
            if shape.dash
            else ' stroke-linecap="round"'
        )
        return (
            f'<path{mark} stroke="{colour}" stroke-width="{shape.width:g}"{ends} '
            f'd="{_path(shape.points)}"/>'
        )
    if isinstance(shape, Area):
        look = (
            f' fill-opacity="{shape.alpha:g}"' * (shape.alpha < 1)
            + ' shape-rendering="crispEdges"' * shape.crisp
        )
        return (
            f'<path{mark} fill="{colour}"{look} '
            f'd="{"".join(_path(ring) + "z" for ring in shape.rings)}"/>'
        )
    if isinstance(shape, Dots):  # a line of no length with round ends
        path = "".join(f"M{_short(x)} {_short(y)}h0" for x, y in shape.points.tolist())
        return (
            f'<path{mark} stroke="{colour}" stroke-width="{shape.size:g}" '
            f'stroke-linecap="round" d="{path}"/>'
        )
    ((x, y),) = shape.points.tolist()
    place = (
        f'transform="translate({x:.2f} {y:.2f}) rotate(-90)"'
        if shape.upright
        else f'x="{x:.2f}" y="{y:.2f}"'
    )
    look = (
        f' text-anchor="{shape.anchor}"' * (shape.anchor != "start")
        + ' font-weight="bold"' * shape.bold
    )
    return (
        f'<text {place} font-size="{shape.size:g}" '
        f'fill="{colour}"{look}>{html.escape(printable(shape.text))}</text>'
    )


def _path(points: Points) -> str:
    """An SVG path through points."""
    return "M" + " ".join(f"{_short(x)} {_short(y)}" for x, y in points.tolist())


def _short(number: float) -> str:
    """A coordinate, rounded to a hundredth of a point."""
    return f"{round(number, 2):g}" if abs(number) < 1e4 else f"{number:.2f}"
