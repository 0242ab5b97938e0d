"""Charts of a page: figures as SVG in the page itself, with the values that a reader
can look up.

Without JavaScript a chart is only its drawing, in colours that follow the page's
scheme. The script of `chart_script.py` adds the values
at the pointer; it reads them as JSON from the figure.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedapps.lab.charts.axes import Axis, Panel, Reading
from fedapps.lab.charts.canvas import Area, Line, Points, Shape, Text, element
from fedapps.lab.charts.drawing import Figure
from fedapps.lab.charts.html import Html, css, text


def chart(name: str, description: str, figure: Figure) -> Html:
    """One figure; its `name` is unique on the page."""
    labels = list(dict.fromkeys(label for label, _ in figure.legend))
    drawing, frames = _svg(figure, description, labels)
    panels = [_panel(panel, labels) for panel in figure.panels if not panel.hidden]
    content = {"frames": frames, "panels": panels}
    data = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # escaped, so that no text can end the script element
    data = data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Html(
        f'<figure class="chart" data-name="{text(name)}" '
        f'aria-label="{text(description)}">{drawing}'
        f'<script type="application/json">{data}</script></figure>'
    )


def _svg(
    figure: Figure, description: str, labels: Sequence[str]
) -> tuple[str, list[tuple[float, ...]]]:
    placed = figure.placed()
    width, height = figure.size

    def drawn(shapes: Sequence[Shape], marked: bool) -> str:
        parts: list[tuple[str, str]] = []
        for shape in shapes:
            series = "" if isinstance(shape, Text) or not marked else shape.series
            mark = f' data-s="{labels.index(series)}"' if series in labels else ""
            drawing = element(_rounded(shape), css(shape.colour), mark)
            look, sign, path = drawing.partition(' d="')
            # lines with the same style become one path
            if parts and sign and " stroke=" in look and parts[-1][0] == look:
                parts[-1] = look, parts[-1][1].removesuffix('"/>') + path
            else:
                parts.append((look, sign + path))
        return "".join(look + path for look, path in parts)

    body = drawn(placed.shapes, True)
    for label, shapes in placed.entries:
        body += f'<g data-k="{labels.index(label)}">{drawn(shapes, False)}</g>'
    return (
        f'<svg role="img" aria-label="{text(description)}" viewBox="0 0 {width:g} '
        f'{height:g}" fill="none" '
        f'stroke-linejoin="round">{body}</svg>',
        [tuple(round(number, 2) for number in frame) for frame in placed.frames],
    )


def _rounded(shape: Shape) -> Shape:
    """A shape rounded to tenths of a point, which no screen can show. Points of a line
    that become redundant are omitted.
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


def _panel(panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    """The data for the script to show the values of a panel: its axes, and the values
    in their units.
    """
    low_high = panel.limits()
    xs: list[list[float | None]] = []
    rows = []
    for reading in panel.readings:
        x = _numbers(reading.x)
        if x not in xs:
            xs.append(x)
        rows.append(_row(reading, panel, labels) | {"x": xs.index(x)})
    content: dict[str, Any] = {
        "x": _axis(panel.x, *low_high[0]),
        "y": _axis(panel.y, *low_high[1]),
        "xs": xs,
        "rows": rows,
    }
    if panel.table is not None:
        content["table"] = [
            _numbers(panel.table.x),
            _numbers(panel.table.y),
            [_numbers(row, 3) for row in panel.table.values],
        ]
    return content


def _row(reading: Reading, panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    name = reading.series.strip() or panel.y.label.partition(" (")[0] or panel.heading
    row: dict[str, Any] = {"n": name, "c": css(reading.colour)}
    if reading.series in labels:
        row["s"] = labels.index(reading.series)
    for key, values in (("y", reading.y), ("l", reading.low), ("h", reading.high)):
        if values is not None:
            row[key] = _numbers(values)
    return row


def _axis(axis: Axis, low: float, high: float) -> dict[str, Any]:
    label = axis.label.removesuffix(" (%)")
    content: dict[str, Any] = {
        "lo": low,
        "hi": high,
        "label": label,
        "unit": " %" if axis.percent or label != axis.label else "",
    }
    content |= {key: True for key in ("percent", "log", "down") if getattr(axis, key)}
    return content | ({"names": [str(name)[:60] for name in axis.names]} if len(axis.names) else {})


def _numbers(values: Points, digits: int = 4) -> list[float | None]:
    """Values for JSON: whole numbers unchanged, others with `digits` significant
    digits, None for NaN and infinite values.
    """
    return [
        None
        if not np.isfinite(value)
        else int(value)
        if value == int(value) and abs(value) < 1e15
        else float(f"{value:.{digits}g}")
        for value in np.asarray(values, float).tolist()
    ]
