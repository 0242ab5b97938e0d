"""The looks of `fedapps/drawing.py` for matplotlib: for figures that need what reports
do not, such as logarithmic axes.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedapps.charts.theme import THEME
from fedapps.formats import is_percent, metric_name, three_digits

_DPI = 160


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(
        buffer, format="png", dpi=_DPI, facecolor=figure.get_facecolor()
    )
    return buffer.getvalue()


def one_panel(heading: str) -> tuple[Figure, Axes]:
    """A figure of the size every plot of a run has, with its heading."""
    figure, axes = panels(1, 1, (6.2, 4.0))
    title(axes[0], heading)
    return figure, axes[0]


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


def title(axes: Axes, text: str, size: float = 12) -> None:
    """The heading of one panel."""
    # No mathematics in foreign text: a single dollar sign in a label would be an error.
    axes.set_title(
        text,
        loc="left",
        fontsize=size,
        fontweight="bold",
        color=THEME.ink.light,
        pad=8,
        parse_math=False,
    )


def line(
    axes: Axes, x: Any, y: Any, colour: str, style: Any = "-", label: str = "", width: float = 2.0
) -> None:
    """A line, with markers unless they would overlap."""
    marker = "o" if len(x) <= 30 else ""
    axes.plot(
        x,
        y,
        color=colour,
        lw=width,
        ls=style,
        marker=marker,
        ms=3.6,
        label=label or "_",
        solid_capstyle="round",
    )


def line_with_range(
    axes: Axes, x: Any, stack: np.ndarray, colour: str, style: str, label: str
) -> None:
    """The mean of `stack` (runs x points) as a line, from lowest to highest run as a
    band.
    """
    if len(stack) > 1:
        axes.fill_between(x, stack.min(axis=0), stack.max(axis=0), color=colour, alpha=0.16, lw=0)
    line(axes, x, stack.mean(axis=0), colour, style, label)


def label_rounds(axes: Axes) -> None:
    """Labels the x axis with whole rounds."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))


def label_values(axes: Axes, key: str, of_what: str) -> None:
    """Labels the y axis with the metric `key`, fractions in per cent."""
    unit = ""
    if is_percent(key):
        unit = " (%)"
        axes.yaxis.set_major_formatter(FuncFormatter(_percent_tick(axes)))
    axes.set_ylabel(", ".join(filter(None, (metric_name(key), of_what))) + unit, parse_math=False)


def _percent_tick(axes: Axes) -> Callable[[float, int], str]:
    def text(value: float, _position: int) -> str:
        ticks = 100 * axes.yaxis.get_majorticklocs()
        whole = all(abs(tick - round(tick)) < 1e-6 for tick in ticks)
        return f"{100 * value:.0f}" if whole else three_digits(100 * value)

    return text


def legend(figure: Figure, axes: Axes) -> None:
    """The legend of `axes` below the figure, if anything has a label."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 3 if sum(map(len, labels)) < 70 else 2
        box = figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            labelcolor=THEME.ink.light,
            fontsize=9.5,
            handlelength=2.2,
            columnspacing=1.6,
        )
        for text in box.get_texts():
            text.set_parse_math(False)
