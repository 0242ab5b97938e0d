"""Plots of a run and of several runs.

`run_figures` draws what the run folder holds: the known measures each in a plot of
their own, every other number of the rounds as one small panel. Each figure exists for a
light and a dark page.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from algorithms.common.measures import lower_is_better
from fedapps.charts.drawing import (
    label_rounds,
    label_values,
    legend,
    line,
    line_with_range,
    one_panel,
    panels,
    percents,
    png,
    title,
)
from fedapps.charts.layout import Figure
from fedapps.charts.theme import LIGHT, Theme
from fedapps.formats import LEADING_MEANS, byte_scale, is_percent, metric_name, metric_text
from fedapps.records.reader import RunFolder, read_run
from fedapps.results.fair_plots import fair_measure, weights_figure, worst_first
from fedapps.results.traffic_plots import draw_over_models, label_models, models_figure

_MAX_PANELS = 24
_LINE_STYLES = ("-", "--", ":", "-.")


def plot_run(run_dir: Path | str) -> list[Path]:
    """Writes the run's plots to `plots/*.png` in its folder (light scheme) and returns
    their paths.
    """
    run = read_run(run_dir)
    return write_plots(run.path, run_figures(run, LIGHT))


def write_plots(run_dir: Path, figures: dict[str, Figure]) -> list[Path]:
    """Writes figures by name as `plots/NAME.png` into a folder and returns their paths.

    Clients name the curves, so that characters of a name that are neither letters nor
    digits become an underscore.
    """
    paths = [run_dir / "plots" / f"{file_name(name)}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(figure))
    return paths


def file_name(figure: str) -> str:
    """The name of a figure as that of a file, without ending."""
    return re.sub("[^A-Za-z0-9-]", "_", figure)[:100]


def run_figures(run: RunFolder, theme: Theme) -> dict[str, Figure]:
    """The run's figures by file name; only those the run has numbers for."""
    train, evaluate = run.series("train"), run.series("evaluate")
    figures: dict[str, Figure] = {}
    measure = fair_measure([run])
    if f"{measure}-mean" in evaluate:
        figures[measure] = _measure(evaluate, measure, theme)
        if run.counts_models and run.models:
            figures["models"] = models_figure(run, f"{measure}-mean", theme)
    if "loss" in train:
        figure, axes = one_panel("Training loss over rounds", theme)
        line(axes, *train["loss"], theme.series[0])
        label_rounds(axes)
        axes.y.label = "training loss, mean over clients"
        figures["train-loss"] = figure
    if run.column(measure):
        figures["clients"] = _client_bars(run, measure, theme)
    if run.weights:
        figures["weights"] = weights_figure(run, theme)
    figures |= {
        f"curve-{name}": figure
        for name, figure in list(_curves(run.curves, theme).items())[:_MAX_PANELS]
    }
    if any("bytes-up" in record or "bytes-down" in record for record in run.rounds):
        figures["bytes"] = _bytes(run, theme)
    shown = {f"{measure}-mean", f"{measure}-worst10", f"{measure}-best10", f"global-{measure}-mean"}
    others = {
        metric_name(k): (k, s)
        for k, s in evaluate.items()
        if k not in shown or measure not in figures
    }
    others |= {f"training {metric_name(k)}": (k, s) for k, s in train.items() if k != "loss"}
    if others:
        figures["measures"] = _small_panels(others, theme)
    return figures


def comparison_figure(runs: Sequence[RunFolder], labels: Sequence[str], theme: Theme) -> Figure:
    """Accuracy or RMSE (AUROC where all runs have it) over rounds beside the clients'
    own, sorted; one colour per label.

    Runs with the same label (seeds of one setting) are drawn as their mean with a band
    from lowest to highest. Runs without accuracies are compared by the first other
    measure of their evaluations.
    """
    groups: dict[str, list[RunFolder]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault(label, []).append(run)
    metric = _shared_metric(runs)
    column = metric.removesuffix("-mean")
    with_clients = any(run.column(column) for run in runs)
    with_models = any(run.counts_models for run in runs) and all(run.models for run in runs)
    wanted = 1 + with_clients + with_models
    figure, axes = panels(1, wanted, (6.2 if wanted == 1 else 4.8 * wanted, 4.3), theme)
    for index, (label, members) in enumerate(groups.items()):
        colour = theme.series[index % len(theme.series)]
        style = _LINE_STYLES[index // len(theme.series) % len(_LINE_STYLES)]
        over_rounds = [
            dict(zip(*s, strict=True))
            for run in members
            if (s := run.series("evaluate").get(metric))
        ]
        if over_rounds:
            common = sorted(set.intersection(*(set(values) for values in over_rounds)))
            stack = np.array([[values[r] for r in common] for values in over_rounds])
            line_with_range(axes[0], common, stack, colour, style, label)
        of_clients = [values for run in members if (values := run.column(column))]
        if with_clients and of_clients:
            # Shares of the clients instead of ranks: runs with different numbers of
            # clients stay comparable.
            share = np.linspace(0, 1, max(101, *map(len, of_clients)))
            stack = np.array(
                [worst_first(np.quantile(values, share), column) for values in of_clients]
            )
            line_with_range(axes[1], 100 * share, stack, colour, style, label)
        if with_models:
            draw_over_models(axes[-1], members, metric, colour, style, label)
    title(axes[0], f"{_sentence(metric_name(column))} over rounds")
    label_rounds(axes[0])
    label_values(axes[0], column, "mean over clients")
    if with_clients:
        title(axes[1], "Clients, from worst to best")
        axes[1].x.label = "share of clients (%)"
        label_values(axes[1], column, "the client's own")
    if with_models:
        title(axes[-1], "The same over models")
        label_models(axes[-1])
        label_values(axes[-1], column, "mean over clients")
    legend(figure, axes[0])
    return figure


def _measure(
    evaluate: dict[str, tuple[list[int], list[float]]], measure: str, theme: Theme
) -> Figure:
    figure, axes = one_panel(f"{_sentence(metric_name(measure))} over rounds", theme)
    if f"{measure}-worst10" in evaluate and f"{measure}-best10" in evaluate:
        low, high = (
            dict(zip(*evaluate[f"{measure}-{end}"], strict=True)) for end in ("worst10", "best10")
        )
        rounds = sorted(low.keys() & high.keys())
        ends = [low[r] for r in rounds], [high[r] for r in rounds]
        axes.band(rounds, *ends, theme.series[0], label="worst 10 % to best 10 % of clients")
    line(axes, *evaluate[f"{measure}-mean"], theme.series[0], label="mean over clients")
    if f"global-{measure}-mean" in evaluate:
        line(axes, *evaluate[f"global-{measure}-mean"], theme.series[1], "--", label="global model")
    label_rounds(axes)
    label_values(axes, measure, "")
    legend(figure, axes)
    return figure


def _client_bars(run: RunFolder, measure: str, theme: Theme) -> Figure:
    figure, axes = one_panel(
        f"{_sentence(metric_name(measure))} of each client, from worst to best", theme
    )
    sign = -1 if lower_is_better(measure) else 1
    rows = sorted(
        (row for row in run.clients if _finite(row.get(measure))),
        key=lambda row: sign * row[measure],
    )
    heights = [row[measure] for row in rows]
    few = len(rows) <= 40
    if few:
        axes.bars(range(len(rows)), heights, 0.78, theme.series[0], alpha=0.85)
    else:
        edges = np.arange(len(rows) + 1) - 0.5
        axes.blocks(edges, heights, theme.series[0], alpha=0.3)
        axes.steps(edges, heights, theme.series[0], 1.8)
    mean = float(np.mean(heights))
    axes.level(mean, theme.ink, 1.2, (4, 3), f"mean {metric_text(measure, mean)}")
    of_global = f"global-{measure}"
    with_global = [(p, row[of_global]) for p, row in enumerate(rows) if _finite(row.get(of_global))]
    if with_global and any(value != heights[p] for p, value in with_global):
        places, values = np.array(with_global, float).T
        if few:  # a rim sets the dots apart from the bars
            axes.dots(places, values, theme.surface, 6.3)
        axes.dots(places, values, theme.series[1], 4.7 if few else 2.0, "global model")
    axes.x.names = [str(row["client"]) for row in rows]
    if few:
        names = [name[:8] for name in axes.x.names]
        axes.x.ticks, axes.x.size = (range(len(rows)), names), 7.5 if len(rows) > 25 else 8.5
        axes.x.upright = sum(len(name) + 1 for name in names) > 75
    axes.x.low, axes.x.high, axes.x.grid = -0.7, len(rows) - 0.3, False
    axes.y.low, axes.y.high = 0.0, 1.02 if is_percent(measure) else axes.y.high
    axes.x.label = "client" if few else f"clients, sorted ({len(rows)})"
    label_values(axes, measure, "on its test set")
    legend(figure, axes)
    return figure


def _bytes(run: RunFolder, theme: Theme) -> Figure:
    figure, axes = one_panel("Traffic so far", theme)
    rounds = [record["round"] for record in run.rounds]
    totals = {
        key: np.cumsum([_count(record.get(key)) for record in run.rounds])
        for key in ("bytes-up", "bytes-down")
    }
    divisor, unit = byte_scale(max(float(total[-1]) for total in totals.values()))
    # Both directions often carry the same: the dashed line on top keeps both visible.
    line(
        axes,
        rounds,
        totals["bytes-down"] / divisor,
        theme.series[0],
        label="server to clients",
        width=3.2,
    )
    line(
        axes,
        rounds,
        totals["bytes-up"] / divisor,
        theme.series[1],
        (3, 2),
        label="clients to server",
    )
    axes.y.low = 0.0
    label_rounds(axes)
    axes.y.label = f"bytes, all clients together ({unit})"
    legend(figure, axes)
    return figure


def _curves(curves: dict[str, list[float]], theme: Theme) -> dict[str, Figure]:
    """Every list `X-Y` as long as the list `X` is a curve of Y over X; `X-Y-std` is its
    band.
    """
    figures = {}
    for key, values in curves.items():
        owners = [x for x in curves if key.startswith(f"{x}-") and len(curves[x]) == len(values)]
        is_band = key.endswith("-std") and key.removesuffix("-std") in curves
        if not owners or is_band:
            continue
        x_name = min(owners, key=len)
        y_name = key.removeprefix(f"{x_name}-")
        figure, axes = one_panel(f"{_sentence(metric_name(y_name))} over {x_name}", theme)
        x, y = np.array(curves[x_name], float), np.array(values, float)
        std = np.array(curves.get(f"{key}-std", []), float)
        if std.shape == y.shape:
            # What is never negative on average (a loss, an error) is not shown as if it
            # could be.
            low, high = np.maximum(y - std, min(0.0, y.min())), y + std
            if is_percent(y_name):
                high = np.minimum(high, 1)
            axes.band(x, low, high, theme.series[0], label="± std over clients")
        line(axes, x, y, theme.series[0], label="mean over clients")
        axes.x.label = x_name
        label_values(axes, y_name, "")
        if std.shape == y.shape:
            legend(figure, axes)
        figures[_file_name(key)] = figure
    return figures


def _small_panels(
    series: dict[str, tuple[str, tuple[list[int], list[float]]]], theme: Theme
) -> Figure:
    shown = list(series.items())[:_MAX_PANELS]
    columns = 2 if len(shown) > 1 else 1
    rows = -(-len(shown) // columns)
    figure, axes = panels(rows, columns, (6.2, max(4.0, 1.75 * rows + 0.3)), theme)
    for panel, (name, (key, (rounds, values))) in zip(axes, shown, strict=False):
        title(panel, _sentence(name), 9.5)
        panel.most = theme.points // 3
        line(panel, rounds, values, theme.series[0])
        panel.x.size = panel.y.size = 8
        panel.x.most, panel.x.whole, panel.y.most = 5, True, 4
        if is_percent(key):
            panel.y.tell, panel.y.percent = _percents_with_unit, True
    for panel in axes[len(shown) :]:
        panel.hidden = True
    for panel in axes[max(0, len(shown) - columns) : len(shown)]:
        panel.x.label, panel.x.label_size = "round", 8.5
    return figure


def _shared_metric(runs: Sequence[RunFolder]) -> str:
    keys = [list(run.series("evaluate")) for run in runs]
    if all("auroc-mean" in run_keys for run_keys in keys):
        return "auroc-mean"
    for name in LEADING_MEANS:
        if any(name in run_keys for run_keys in keys):
            return name
    candidates = [key for run_keys in keys for key in run_keys]
    means = [key for key in candidates if key.endswith("-mean")]
    return (means or candidates or ["accuracy-mean"])[0]


def _percents_with_unit(ticks: Sequence[float]) -> list[str]:
    return [f"{text} %" for text in percents(ticks)]


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and bool(np.isfinite(value))


def _count(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _file_name(key: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in key)
