"""Writes figures as files for papers and slides: PDF, PNG and SVG. Matplotlib draws
them and is imported only here. Texts stay texts.
"""

import io
from typing import Any

import numpy as np

from fedapps.lab.charts.canvas import Area, Dots, Line, Points, Text, printable
from fedapps.lab.charts.drawing import Figure

FORMATS = ("pdf", "png", "svg")
_DPI = 160  # for PNG
# Without dates and random names, so that equal figures give equal files.
_SETTINGS: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedapps"}
_NO_DATE = {"pdf": {"CreationDate": None}, "png": {}, "svg": {"Date": None}}


def file(figure: Figure, form: str, dark: bool = False) -> bytes:
    """Return a figure as the content of a file, in the light or the dark scheme;
    ``form`` is one of ``FORMATS``.
    """
    import matplotlib
    from matplotlib import figure as plots
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    width, height = figure.size
    background = figure.panels[0].theme.surface.of(dark)
    sheet = plots.Figure((width / 72, height / 72), facecolor=background)
    page = sheet.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    page.set_axis_off()
    for order, shape in enumerate(figure.shapes()):
        if isinstance(shape, Text):
            ((x, y),) = shape.points.tolist()
            page.text(
                x,
                y,
                printable(shape.text).replace("$", r"\$"),
                size=shape.size,
                color=shape.colour.of(dark),
                ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                va="baseline",
                rotation=90 if shape.upright else 0,
                rotation_mode="anchor",
                weight="bold" if shape.bold else "normal",
                zorder=order,
            )
        elif isinstance(shape, Line):
            line = Line2D(
                *shape.points.T, color=shape.colour.of(dark), linewidth=shape.width, zorder=order
            )
            line.set_solid_capstyle("round")
            if shape.dash:
                line.set_dashes([part / shape.width for part in shape.dash])
            page.add_line(line)
        else:
            rings = shape.rings if isinstance(shape, Area) else _rings(shape)
            closed = [Path(np.concatenate([ring, ring[:1]]), closed=False) for ring in rings]
            alpha = shape.alpha if isinstance(shape, Area) else 1.0
            page.add_patch(
                PathPatch(
                    Path.make_compound_path(*closed),
                    facecolor=shape.colour.of(dark),
                    alpha=alpha,
                    linewidth=0,
                    zorder=order,
                )
            )
    out = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        sheet.savefig(out, format=form, dpi=_DPI, facecolor=background, metadata=_NO_DATE[form])
    return out.getvalue()


def _rings(dots: Dots) -> list[Points]:
    """Return the outlines of dots, with 24 corners each."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    corners = np.stack([np.cos(angles), np.sin(angles)], 1) * (dots.size / 2)
    return [point + corners for point in dots.points]
