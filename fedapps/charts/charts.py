"""Charts of a page: figures as SVG in the page itself, and beside them the values that
a reader can ask for.

Without JavaScript the drawing is all there is, for a wide and for a narrow screen, in
colours that follow the page's scheme. The script adds what `chart_script.py` says; it
finds the values as JSON in the figure.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedapps.charts.axes import Axis, Panel, Reading
from fedapps.charts.canvas import Area, Line, Points, Shape, Text, element
from fedapps.charts.html import Html, both, text
from fedapps.charts.layout import Figure


def chart(name: str, description: str, light: Figure, dark: Figure) -> Html:
    """One figure, drawn in two colour schemes; `name` tells it from the others of the
    page.
    """
    labels = list(dict.fromkeys(label for label, _ in light.legend))
    drawings, frames = [], {}
    for style, pair in (("wide", (light, dark)), ("narrow", (light.narrow(), dark.narrow()))):
        drawing, frames[style] = _svg(*pair, style, description, labels)
        drawings.append(drawing)
    panels = zip(_shown(light), _shown(dark), strict=True)
    told = {"frames": frames, "panels": [_panel(*pair, labels) for pair in panels]}
    data = json.dumps(told, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # no end of the element within it
    data = data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Html(
        f'<figure class="chart" data-name="{text(name)}" '
        f'aria-label="{text(description)}">{"".join(drawings)}'
        f'<script type="application/json">{data}</script></figure>'
    )


def _shown(figure: Figure) -> list[Panel]:
    return [panel for panel in figure.panels if not panel.hidden]


def _svg(
    light: Figure, dark: Figure, style: str, description: str, labels: Sequence[str]
) -> tuple[str, list[tuple[float, ...]]]:
    one, other = light.placed(), dark.placed()
    width, height = light.size

    def drawn(shapes: Sequence[Shape], twins: Sequence[Shape], marked: bool) -> str:
        parts: list[tuple[str, str]] = []
        for shape, twin in zip(shapes, twins, strict=True):
            series = "" if isinstance(shape, Text) or not marked else shape.series
            mark = f' data-s="{labels.index(series)}"' if series in labels else ""
            look, sign, path = element(
                replace(_rounded(shape), colour=both(shape.colour, twin.colour)), mark
            ).partition(' d="')
            # lines of one look are one path
            if parts and sign and " stroke=" in look and parts[-1][0] == look:
                parts[-1] = look, parts[-1][1].removesuffix('"/>') + path
            else:
                parts.append((look, sign + path))
        return "".join(look + path for look, path in parts)

    body = drawn(one.shapes, other.shapes, True)
    for (label, shapes), (_, twins) in zip(one.entries, other.entries, strict=True):
        body += f'<g data-k="{labels.index(label)}">{drawn(shapes, twins, False)}</g>'
    return (
        f'<svg class="{style}" role="img" aria-label="{text(description)}" viewBox="0 0 {width:g} '
        f'{height:g}" fill="none" '
        f'stroke-linejoin="round">{body}</svg>',
        [tuple(round(number, 2) for number in frame) for frame in one.frames],
    )


def _rounded(shape: Shape) -> Shape:
    """A shape at tenths of a point, which no screen shows; points of a line that then
    coincide or lie between equals are left out.
    """
    if isinstance(shape, Line):
        return replace(shape, points=_fewer(shape.points))
    if isinstance(shape, Area):
        return replace(shape, rings=tuple(map(_fewer, shape.rings)))
    return replace(shape, points=np.round(shape.points, 1))


def _fewer(points: Points) -> Points:
    points = np.round(points, 1)
    before, after = points[1:-1] - points[:-2], points[2:] - points[1:-1]
    flat = ((before == 0) & (after == 0)).any(1) & ((before * after) >= 0).all(1)
    return points[np.concatenate([[True], ~flat, [True]])] if len(points) > 2 else points


# --- values ---------------------------------------------------------------------------


def _panel(light: Panel, dark: Panel, labels: Sequence[str]) -> dict[str, Any]:
    """What the script needs to tell the values of a panel: its axes, and the values at
    them, in units of the axes.
    """
    low_high = light.limits()
    xs: list[list[float | None]] = []
    rows = []
    for reading, twin in zip(light.readings, dark.readings, strict=True):
        x = _numbers(reading.x)
        if x not in xs:
            xs.append(x)
        rows.append(_row(reading, twin, light, labels) | {"x": xs.index(x)})
    told: dict[str, Any] = {
        "x": _axis(light.x, *low_high[0]),
        "y": _axis(light.y, *low_high[1]),
        "xs": xs,
        "rows": rows,
        "point": light.by_point,
    }
    if light.table is not None:
        told["table"] = [
            _numbers(light.table.x),
            _numbers(light.table.y),
            [_numbers(row, 3) for row in light.table.values],
        ]
        told["unit"], told["percent"] = " %" if light.percent else "", light.percent
    return told


def _row(reading: Reading, twin: Reading, panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    name = reading.series.strip() or panel.y.label.partition(" (")[0] or panel.heading
    row: dict[str, Any] = {"n": name, "c": both(reading.colour, twin.colour)}
    if reading.series in labels:
        row["s"] = labels.index(reading.series)
    for key, values in (("y", reading.y), ("l", reading.low), ("h", reading.high)):
        if values is not None:
            row[key] = _numbers(values)
    return row


def _axis(axis: Axis, low: float, high: float) -> dict[str, Any]:
    label = axis.label.removesuffix(" (%)")
    told: dict[str, Any] = {
        "lo": low,
        "hi": high,
        "label": label,
        "unit": " %" if axis.percent or label != axis.label else "",
    }
    told |= {key: True for key in ("percent", "log", "down") if getattr(axis, key)}
    return told | ({"names": [str(name)[:60] for name in axis.names]} if len(axis.names) else {})


def _numbers(values: Points, digits: int = 4) -> list[float | None]:
    """Values as JSON has them: whole numbers as they are, others with so many digits,
    none for what is no number.
    """
    return [
        None
        if not np.isfinite(value)
        else int(value)
        if value == int(value) and abs(value) < 1e15
        else float(f"{value:.{digits}g}")
        for value in np.asarray(values, float).tolist()
    ]
