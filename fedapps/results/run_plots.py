"""Plots of a run and of several runs, as PNG.

Only matplotlib's object interface with the Agg canvas: no pyplot, no display, no global state, so that it is safe in
a worker thread and on a server. `run_figures` draws what the run folder holds: the known measures each in a plot of
their own, every other number of the rounds as one small panel. Each figure exists for a light and a dark page.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedapps.results.drawing import (
    LIGHT,
    Theme,
    label_rounds,
    label_values,
    legend,
    line,
    line_with_range,
    one_panel,
    panels,
    png,
    title,
)
from fedapps.results.fair_plots import fair_measure, weights_figure
from fedapps.results.formats import byte_scale, is_percent, metric_name
from fedapps.results.reader import RunFolder, read_run
from fedapps.results.traffic_plots import draw_over_models, label_models, models_figure

_MAX_PANELS = 24
_LINE_STYLES = ("-", "--", ":", "-.")


def plot_run(run_dir: Path | str) -> list[Path]:
    """Writes the run's plots to `plots/*.png` in its folder (light scheme) and returns their paths."""
    run = read_run(run_dir)
    folder = run.path / "plots"
    paths = []
    for name, figure in run_figures(run, LIGHT).items():
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.png"
        path.write_bytes(png(figure))
        paths.append(path)
    return paths


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
        axes.set_ylabel("training loss, mean over clients")
        figures["train-loss"] = figure
    if run.column(measure):
        figures["clients"] = _client_bars(run, measure, theme)
    if run.weights:
        figures["weights"] = weights_figure(run, theme)
    figures |= {f"curve-{name}": figure for name, figure in _curves(run.curves, theme).items()}
    if any("bytes-up" in record or "bytes-down" in record for record in run.rounds):
        figures["bytes"] = _bytes(run, theme)
    shown = {f"{measure}-mean", f"{measure}-worst10", f"{measure}-best10", f"global-{measure}-mean"}
    others = {metric_name(k): (k, s) for k, s in evaluate.items() if k not in shown or measure not in figures}
    others |= {f"training {metric_name(k)}": (k, s) for k, s in train.items() if k not in ("loss", "models-up", "models-down")}
    if others:
        figures["measures"] = _small_panels(others, theme)
    return figures


def plot_comparison(run_dirs: Sequence[Path | str], labels: Sequence[str], path: Path, theme: Theme = LIGHT) -> Path:
    """Accuracy (AUROC where all runs have it) over rounds beside the clients' own, sorted; one colour per label.

    Runs with the same label (seeds of one setting) are drawn as their mean with a band from lowest to highest.
    Runs without accuracies are compared by the first other measure of their evaluations.
    """
    runs = [read_run(run_dir) for run_dir in run_dirs]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(comparison_figure(runs, labels, theme)))
    return path


def comparison_figure(runs: Sequence[RunFolder], labels: Sequence[str], theme: Theme) -> Figure:
    """The figure of `plot_comparison`."""
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
        over_rounds = [dict(zip(*s, strict=True)) for run in members if (s := run.series("evaluate").get(metric))]
        if over_rounds:
            common = sorted(set.intersection(*(set(values) for values in over_rounds)))
            stack = np.array([[values[r] for r in common] for values in over_rounds])
            line_with_range(axes[0], common, stack, colour, style, label)
        sorted_clients = [np.sort(values) for run in members if (values := run.column(column))]
        if with_clients and sorted_clients:
            # Shares of the clients instead of ranks: runs with different numbers of clients stay comparable.
            share = np.linspace(0, 1, max(101, *map(len, sorted_clients)))
            stack = np.array([np.quantile(values, share) for values in sorted_clients])
            line_with_range(axes[1], 100 * share, stack, colour, style, label)
        if with_models:
            draw_over_models(axes[-1], members, metric, colour, style, label)
    title(axes[0], f"{_sentence(metric_name(column))} over rounds", theme)
    label_rounds(axes[0])
    label_values(axes[0], column, "mean over clients")
    if with_clients:
        title(axes[1], "Clients, from worst to best", theme)
        axes[1].set_xlabel("share of clients (%)")
        label_values(axes[1], column, "the client's own")
    if with_models:
        title(axes[-1], "The same over models", theme)
        label_models(axes[-1])
        label_values(axes[-1], column, "mean over clients")
    legend(figure, axes[0], theme)
    return figure


def _measure(evaluate: dict[str, tuple[list[int], list[float]]], measure: str, theme: Theme) -> Figure:
    figure, axes = one_panel(f"{_sentence(metric_name(measure))} over rounds", theme)
    if f"{measure}-worst10" in evaluate and f"{measure}-best10" in evaluate:
        low, high = (dict(zip(*evaluate[f"{measure}-{end}"], strict=True)) for end in ("worst10", "best10"))
        rounds = sorted(low.keys() & high.keys())
        ends = [low[r] for r in rounds], [high[r] for r in rounds]
        axes.fill_between(rounds, *ends, color=theme.series[0], alpha=0.16, lw=0, label="worst 10 % to best 10 % of clients")
    line(axes, *evaluate[f"{measure}-mean"], theme.series[0], label="mean over clients")
    if f"global-{measure}-mean" in evaluate:
        line(axes, *evaluate[f"global-{measure}-mean"], theme.series[1], "--", label="global model")
    label_rounds(axes)
    label_values(axes, measure, "")
    legend(figure, axes, theme)
    return figure


def _client_bars(run: RunFolder, measure: str, theme: Theme) -> Figure:
    figure, axes = one_panel(f"{_sentence(metric_name(measure))} of each client, from worst to best", theme)
    rows = sorted((row for row in run.clients if _finite(row.get(measure))), key=lambda row: row[measure])
    heights = [row[measure] for row in rows]
    positions = np.arange(len(rows))
    few = len(rows) <= 40
    if few:
        axes.bar(positions, heights, width=0.78, color=theme.series[0], lw=0, alpha=0.85)
    else:
        axes.fill_between(positions, heights, step="mid", color=theme.series[0], lw=0, alpha=0.3)
        axes.step(positions, heights, where="mid", color=theme.series[0], lw=1.8)
    mean = float(np.mean(heights))
    axes.axhline(mean, color=theme.ink, lw=1.2, ls=(0, (4, 3)), label=f"mean {100 * mean:.1f} %")
    of_global = f"global-{measure}"
    with_global = [(p, row[of_global]) for p, row in enumerate(rows) if _finite(row.get(of_global))]
    if with_global and any(value != heights[p] for p, value in with_global):
        axes.scatter(
            [p for p, _ in with_global], [value for _, value in with_global], s=22 if few else 4, color=theme.series[1], zorder=3,
            edgecolors=theme.surface if few else "none", linewidths=0.8, label="global model",
        )  # fmt: skip
    if few:
        axes.set_xticks(positions, [str(row["client"])[:8] for row in rows], parse_math=False)
        crowded = sum(min(8, len(str(row["client"]))) + 1 for row in rows) > 75
        axes.tick_params(axis="x", labelsize=7.5 if len(rows) > 25 else 8.5, rotation=90 if crowded else 0)
    axes.set_xlim(-0.7, len(rows) - 0.3)
    axes.set_ylim(0, 1.02)
    axes.grid(False, axis="x")
    axes.set_xlabel("client" if few else f"clients, sorted ({len(rows)})")
    label_values(axes, measure, "on its test set")
    legend(figure, axes, theme)
    return figure


def _bytes(run: RunFolder, theme: Theme) -> Figure:
    figure, axes = one_panel("Traffic so far", theme)
    rounds = [record["round"] for record in run.rounds]
    totals = {key: np.cumsum([_count(record.get(key)) for record in run.rounds]) for key in ("bytes-up", "bytes-down")}
    divisor, unit = byte_scale(max(float(total[-1]) for total in totals.values()))
    # Both directions often carry the same: the dashed line on top keeps both visible.
    line(axes, rounds, totals["bytes-down"] / divisor, theme.series[0], label="server to clients", width=3.2)
    line(axes, rounds, totals["bytes-up"] / divisor, theme.series[1], (0, (3, 2)), label="clients to server")
    axes.set_ylim(bottom=0)
    label_rounds(axes)
    axes.set_ylabel(f"bytes, all clients together ({unit})")
    legend(figure, axes, theme)
    return figure


def _curves(curves: dict[str, list[float]], theme: Theme) -> dict[str, Figure]:
    """Every list `X-Y` as long as the list `X` is a curve of Y over X; `X-Y-std` is its band."""
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
            # What is never negative on average (a loss, an error) is not shown as if it could be.
            low, high = np.maximum(y - std, min(0.0, y.min())), y + std
            if is_percent(y_name):
                high = np.minimum(high, 1)
            axes.fill_between(x, low, high, color=theme.series[0], alpha=0.16, lw=0, label="± std over clients")
        line(axes, x, y, theme.series[0], label="mean over clients")
        axes.set_xlabel(x_name, parse_math=False)
        label_values(axes, y_name, "")
        if std.shape == y.shape:
            legend(figure, axes, theme)
        figures[_file_name(key)] = figure
    return figures


def _small_panels(series: dict[str, tuple[str, tuple[list[int], list[float]]]], theme: Theme) -> Figure:
    shown = list(series.items())[:_MAX_PANELS]
    columns = 2 if len(shown) > 1 else 1
    rows = -(-len(shown) // columns)
    figure, axes = panels(rows, columns, (6.2, max(4.0, 1.75 * rows + 0.3)), theme)
    for panel, (name, (key, (rounds, values))) in zip(axes, shown, strict=False):
        title(panel, _sentence(name), theme, size=9.5)
        line(panel, rounds, values, theme.series[0])
        panel.tick_params(labelsize=8)
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        if is_percent(key):
            panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
    for panel in axes[len(shown) :]:
        panel.set_visible(False)
    for panel in axes[max(0, len(shown) - columns) : len(shown)]:
        panel.set_xlabel("round", fontsize=8.5)
    return figure


def _shared_metric(runs: Sequence[RunFolder]) -> str:
    keys = [list(run.series("evaluate")) for run in runs]
    if all("auroc-mean" in run_keys for run_keys in keys):
        return "auroc-mean"
    if any("accuracy-mean" in run_keys for run_keys in keys):
        return "accuracy-mean"
    candidates = [key for run_keys in keys for key in run_keys]
    means = [key for key in candidates if key.endswith("-mean")]
    return (means or candidates or ["accuracy-mean"])[0]


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and bool(np.isfinite(value))


def _count(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _file_name(key: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in key)
