"""Accuracy against models sent: what a method costs where rounds of different methods
send different numbers of models.
"""

from collections.abc import Sequence

import numpy as np

from fedapps.charts.axes import Panel
from fedapps.charts.drawing import label_values, line, line_with_range, one_panel
from fedapps.charts.layout import Figure
from fedapps.charts.theme import Theme
from fedapps.records.reader import RunFolder

MODELS_AXIS = "models sent and received, per client"


def models_figure(run: RunFolder, key: str, theme: Theme) -> Figure:
    """One measure of the evaluations of a run over the models sent until then."""
    figure, axes = one_panel("The same over models instead of rounds", theme)
    line(axes, *over_models(run, key), theme.series[0])
    label_models(axes)
    label_values(axes, key.removesuffix("-mean"), "mean over clients")
    return figure


def over_models(run: RunFolder, key: str) -> tuple[list[float], list[float]]:
    """Return (models sent until each evaluation, value of the measure)."""
    sent = run.models
    rounds, values = run.series("evaluate").get(key, ([], []))
    pairs = [
        (sent[number], value)
        for number, value in zip(rounds, values, strict=True)
        if number in sent
    ]
    return [x for x, _ in pairs], [y for _, y in pairs]


def draw_over_models(
    axes: Panel, members: Sequence[RunFolder], key: str, colour: str, style: str, label: str
) -> None:
    """Draw runs of one setting: their mean, and a band from lowest to highest where
    they sent the same.
    """
    curves = [curve for run in members if (curve := over_models(run, key))[0]]
    if curves and all(curve[0] == curves[0][0] for curve in curves):
        line_with_range(
            axes, curves[0][0], np.array([values for _, values in curves]), colour, style, label
        )
    else:
        for number, curve in enumerate(curves):
            line(axes, *curve, colour, style, label=label if number == 0 else "")


def label_models(axes: Panel) -> None:
    """Name the axis."""
    axes.x.label, axes.x.low = MODELS_AXIS, 0.0
