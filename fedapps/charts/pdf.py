"""Shapes as a PDF file, for papers: drawn by Matplotlib, which is imported for nothing
else, with texts that stay text.
"""

import io
from collections.abc import Sequence

import numpy as np

from fedapps.charts.canvas import FORMS, Area, Dots, Line, Shape


def pdf(shapes: Sequence[Shape], size: tuple[float, float], background: str) -> bytes:
    """Return the shapes as a PDF file of ``size`` points (width, height)."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    width, height = size
    figure = Figure((width / 72, height / 72), facecolor=background)
    page = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    page.set_axis_off()
    for order, shape in enumerate(shapes):
        if isinstance(shape, Line):
            line = Line2D(*shape.points.T, color=shape.colour, linewidth=shape.width, zorder=order)
            if shape.dash:
                # in widths of the line
                line.set_dashes([part / shape.width for part in shape.dash])
            page.add_line(line)
        elif isinstance(shape, Area | Dots):
            rings = (
                shape.rings
                if isinstance(shape, Area)
                else tuple(_outline(point, shape) for point in shape.points)
            )
            outline = Path.make_compound_path(
                *(Path(ring, closed=False) for ring in map(_closed, rings))
            )
            alpha = shape.alpha if isinstance(shape, Area) else 1.0
            page.add_patch(
                PathPatch(outline, facecolor=shape.colour, alpha=alpha, linewidth=0, zorder=order)
            )
        else:
            ((x, y),) = shape.points.tolist()
            side = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
            text = shape.text.replace("$", r"\$")
            page.text(
                x,
                y,
                text,
                size=shape.size,
                color=shape.colour,
                ha=side,
                va="baseline",
                rotation=90 if shape.upright else 0,
                rotation_mode="anchor",
                weight="bold" if shape.bold else "normal",
                zorder=order,
            )
    out = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(out, format="pdf", facecolor=background, metadata={"CreationDate": None})
    return out.getvalue()


def _outline(point: np.ndarray, dots: Dots) -> np.ndarray:
    """Return the corners (n, 2) of a dot; a disc has 24."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    form = (
        np.stack([np.cos(angles), np.sin(angles)], 1) if dots.form == "disc" else FORMS[dots.form]
    )
    return point + form * (dots.size / 2)


def _closed(ring: np.ndarray) -> np.ndarray:
    return np.concatenate([ring, ring[:1]])
