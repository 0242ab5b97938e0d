"""The plots of one run, and the plot that compares several; `parts.py` lists the page
of each.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedapps.formats import LEADING_MEANS, is_percent, metric_name, sentence
from fedapps.lab.charts.axes import Panel
from fedapps.lab.charts.drawing import (
    Figure,
    label_rounds,
    label_values,
    legend,
    line,
    one_panel,
    panels,
    percents,
    title,
)
from fedapps.lab.charts.theme import MOST, Theme
from fedapps.lab.results.fair_plots import fair_measure
from fedapps.lab.results.grid_plots import X_LABELS, Runs, draw_lines, line_of, lines_of
from fedapps.lab.results.run_measures import Measure
from fedapps.records.reader import RunFolder

_MAX_PANELS = 24
#: What scores are shown over beside rounds: the kind of plot, and the label.
_COSTS = {
    "models": ("models", X_LABELS["models"]),
    "time": ("clock", "seconds of the run, without evaluations"),
}


def measure_figure(run: RunFolder, theme: Theme) -> dict[str, Figure]:
    """The leading score over the rounds, named after the measure."""
    evaluate, measure = run.series("evaluate"), fair_measure([run])
    if f"{measure}-mean" not in evaluate:
        return {}
    figure, axes = one_panel(f"{sentence(metric_name(measure))} over rounds", theme)
    ends = [evaluate.get(f"{measure}-{end}") for end in ("worst10", "best10")]
    if ends[0] and ends[1]:
        low, high = (dict(zip(*end, strict=True)) for end in ends if end)
        rounds = sorted(low.keys() & high.keys())
        heights = [low[r] for r in rounds], [high[r] for r in rounds]
        axes.band(rounds, *heights, theme.series[0], label="worst 10 % to best 10 % of clients")
    line(axes, *evaluate[f"{measure}-mean"], theme.series[0], label="mean over clients")
    if f"global-{measure}-mean" in evaluate:
        line(axes, *evaluate[f"global-{measure}-mean"], theme.series[1], "--", label="global model")
    label_rounds(axes)
    label_values(axes, measure, "")
    _note_single(axes, [run])
    legend(figure, axes)
    return {measure: figure}


def cost_figures(run: RunFolder, theme: Theme) -> dict[str, Figure]:
    """The leading score over the seconds of the run, by its clock, and over the models
    sent, for a run whose messages are not one model each.
    """
    measure, figures = fair_measure([run]), dict[str, Figure]()
    for name, (kind, label) in _COSTS.items():
        points = line_of(kind, f"{measure}-mean", [run])
        if points is None or (kind == "models" and not run.counts_models):
            continue
        figures[name], axes = one_panel(f"{sentence(metric_name(measure))} over {name}", theme)
        line(axes, points[0], points[1][0], theme.series[0])
        axes.x.label, axes.x.low = label, 0.0
        label_values(axes, measure, "mean over clients")
    return figures


def loss_figure(run: RunFolder, theme: Theme) -> Figure | None:
    """The training loss over the rounds."""
    train = run.series("train")
    if "loss" not in train:
        return None
    figure, axes = one_panel("Training loss over rounds", theme)
    line(axes, *train["loss"], theme.series[0])
    label_rounds(axes)
    axes.y.label = "training loss, mean over clients"
    return figure


def curve_figures(run: RunFolder, theme: Theme) -> dict[str, Figure]:
    """A curve of Y over X for every list `X-Y` that is as long as the list `X`;
    `X-Y-std` is its band.
    """
    figures: dict[str, Figure] = {}
    for key, values in run.curves.items():
        owners = [
            x for x, xs in run.curves.items() if key.startswith(f"{x}-") and len(xs) == len(values)
        ]
        is_band = key.endswith("-std") and key.removesuffix("-std") in run.curves
        if not owners or is_band or len(figures) == _MAX_PANELS:
            continue
        x_name = min(owners, key=len)
        y_name = key.removeprefix(f"{x_name}-")
        figure, axes = one_panel(f"{sentence(metric_name(y_name))} over {x_name}", theme)
        x, y = np.array(run.curves[x_name], float), np.array(values, float)
        std = np.array(run.curves.get(f"{key}-std", []), float)
        if std.shape == y.shape:
            # If the mean is never negative (a loss, an error), neither is the band.
            low, high = np.maximum(y - std, min(0.0, y.min())), y + std
            if is_percent(y_name):
                high = np.minimum(high, 1)
            axes.band(x, low, high, theme.series[0], label="± std over clients")
            legend(figure, axes)
        line(axes, x, y, theme.series[0], label="mean over clients")
        axes.x.label = x_name
        label_values(axes, y_name, "")
        figures[f"curve-{key}"] = figure
    return figures


def other_measures(run: RunFolder, theme: Theme) -> Figure | None:
    """The measures that no other plot shows, over the rounds, one small panel each."""
    measure, evaluate = fair_measure([run]), run.series("evaluate")
    shown = [f"{measure}-{end}" for end in ("mean", "worst10", "best10")]
    elsewhere = {*shown, f"global-{measure}-mean"} if shown[0] in evaluate else set()
    series = [(metric_name(k), k, s) for k, s in evaluate.items() if k not in elsewhere]
    series += [
        (f"training {metric_name(k)}", k, s) for k, s in run.series("train").items() if k != "loss"
    ]
    if not series:
        return None
    series = series[:_MAX_PANELS]
    columns = 2 if len(series) > 1 else 1
    rows = -(-len(series) // columns)
    figure, axes = panels(rows, columns, (6.2, max(4.0, 1.75 * rows + 0.3)), theme, len(series))
    for panel, (name, key, curve) in zip(axes, series, strict=False):
        title(panel, sentence(name), 9.5)
        panel.most = MOST // 3
        line(panel, *curve, theme.series[0])
        panel.x.size = panel.y.size = 8
        panel.x.most, panel.x.whole, panel.y.most = 5, True, 4
        if is_percent(key):
            panel.y.format, panel.y.percent = _percents_with_unit, True
    for panel in axes[max(0, len(series) - columns) : len(series)]:
        panel.x.label, panel.x.label_size = "round", 8.5
    return figure


def comparison_figure(groups: Mapping[str, Runs], theme: Theme) -> Figure:
    """Two panels: accuracy or RMSE (AUROC if all runs have it) over rounds, and the
    clients' values, sorted; one colour per label.

    Runs with the same label (seeds of one setting) are drawn as their mean, with a band
    from the lowest to the highest. Runs without accuracies are compared by the first
    other measure of their evaluations.
    """
    runs = [run for members in groups.values() for run in members]
    metric = _shared_metric(runs)
    column = metric.removesuffix("-mean")
    own, counted = "Clients, from worst to best", "The same over models"
    kinds = {"rounds": f"{sentence(metric_name(column))} over rounds"}
    kinds |= {"clients": own} if any(run.column(column) for run in runs) else {}
    if any(run.counts_models for run in runs) and all(run.models for run in runs):
        kinds |= {"models": counted}
    width = 6.2 if len(kinds) == 1 else 4.8 * len(kinds)
    figure, axes = panels(1, len(kinds), (width, 4.3), theme)
    for panel, (kind, heading) in zip(axes, kinds.items(), strict=True):
        measure = column if kind == "clients" else Measure(metric, metric)
        draw_lines(panel, list(groups), lines_of(kind, measure, groups), theme)
        title(panel, heading)
        if kind == "rounds":
            label_rounds(panel)
            _note_single(panel, runs)
        else:
            panel.x.label = X_LABELS[kind]
            panel.x.low = 0.0 if kind == "models" else None
        of_what = "the client's own" if kind == "clients" else "mean over clients"
        label_values(panel, column, of_what)
    legend(figure, axes[0])
    return figure


def _note_single(panel: Panel, runs: Sequence[RunFolder]) -> None:
    if all(sum("evaluate" in record for record in run.rounds) == 1 for run in runs):
        panel.note = "one evaluation; a smaller evaluate-every shows its course"


def _shared_metric(runs: Sequence[RunFolder]) -> str:
    keys = [list(run.series("evaluate")) for run in runs]
    if all("auroc-mean" in run_keys for run_keys in keys):
        return "auroc-mean"
    candidates = [key for run_keys in keys for key in run_keys]
    means = [key for key in candidates if key.endswith("-mean")]
    leading = [name for name in LEADING_MEANS if name in candidates]
    return (leading or means or candidates or ["accuracy-mean"])[0]


def _percents_with_unit(ticks: Sequence[float]) -> list[str]:
    return [f"{text} %" for text in percents(ticks)]
