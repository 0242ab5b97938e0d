"""The looks of `lab/charts/drawing.py` for matplotlib: for figures that need what
reports do not, such as contours.
"""

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedapps.lab.charts.theme import THEME

_DPI = 160


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(
        buffer, format="png", dpi=_DPI, facecolor=figure.get_facecolor()
    )
    return buffer.getvalue()


def panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of axes, row by row; `size` in inches."""
    figure = Figure(figsize=size, layout="constrained", facecolor=THEME.surface.light)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08, wspace=0.05, hspace=0.04)  # type: ignore[union-attr,call-arg]
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in axes:
        panel.set_facecolor(THEME.surface.light)
        panel.grid(True, color=THEME.grid.light, lw=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.spines["bottom"].set_color(THEME.muted.light)
        panel.tick_params(colors=THEME.muted.light, labelsize=9, length=0)
        for axis in (panel.xaxis, panel.yaxis):
            axis.label.set_color(THEME.muted.light)
            axis.label.set_fontsize(10)
    return figure, axes


def title(axes: Axes, text: str) -> None:
    """The heading of one panel."""
    # No mathematics in foreign text: a single dollar sign in a label would be an error.
    axes.set_title(
        text,
        loc="left",
        fontsize=12,
        fontweight="bold",
        color=THEME.ink.light,
        pad=8,
        parse_math=False,
    )


def line(axes: Axes, x: Any, y: Any, colour: str) -> None:
    """A line, with markers unless they would overlap."""
    marker = "o" if len(x) <= 30 else ""
    axes.plot(x, y, color=colour, lw=2.0, marker=marker, ms=3.6, solid_capstyle="round")
