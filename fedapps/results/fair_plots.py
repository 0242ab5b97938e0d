"""Plots of fairness: the weights that a method gives its clients over the rounds, and
what each client gets, method beside method.
"""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorithms.common.measures import LEADING, lower_is_better
from fedapps.charts.axes import Panel, Reading
from fedapps.charts.drawing import (
    heat,
    heat_key,
    label_rounds,
    label_values,
    legend,
    panels,
    title,
)
from fedapps.charts.layout import Figure
from fedapps.charts.theme import MOST, Theme
from fedapps.formats import is_percent, metric_text
from fedapps.records.reader import RunFolder

#: So many rows and columns of a heat map can be told apart.
_MAX_CLIENTS = 40
_MAX_COLUMNS = 240
#: So many methods have room beside each other, so many clients have bars of their own.
_MAX_METHODS = 8
_MAX_BARS = 40

Floats = NDArray[np.float64]


def weights_figure(run: RunFolder, theme: Theme) -> Figure:
    """Return a heat map of the clients' weights; a client that was not asked in a round
    has no colour there.
    """
    rounds, clients, table = weights_table(run.weights)
    total = len(clients)
    chosen, reason = _clients_shown(table)
    table, clients = table[chosen], [clients[place] for place in chosen]
    edges, table = _fewer_columns(rounds, table, round(_MAX_COLUMNS * (theme.points / MOST) ** 2))

    height = max(3.0, 1.6 + 0.155 * len(clients))
    figure, (axes,) = panels(1, 1, (6.2, height), theme)
    title(axes, "Weight of each client over rounds")
    if table.shape[1] < len(rounds):
        axes.note = (
            f"each column: the mean over {-(-len(rounds) // table.shape[1])} rounds with weights"
        )
    seen = table[~np.isnan(table)]
    high = float(seen.max())
    low = float(seen.min()) if 0.5 * high < seen.min() < high else 0.0
    colours = (theme.grid, theme.series[0], theme.ink)
    heat(axes, (edges, np.arange(len(clients) + 1) - 0.5), table, (low, high), colours)
    axes.y.ticks, axes.y.down = (range(len(clients)), [client[:8] for client in clients]), True
    axes.y.names = clients
    axes.y.size = 6.5 if len(clients) > 15 else 8.5
    axes.y.label = (
        f"the {len(clients)} of {total} clients {reason}" if total > len(clients) else "client"
    )
    label_rounds(axes)
    key = heat_key(axes, (low, high), colours, "weight p (line: an equal share)")
    equal = len(set(rounds)) / len(run.weights)
    if low <= equal <= high:
        key.level(equal, theme.series[1], 2)
    return figure


def weights_table(weights: Sequence[tuple[int, str, float]]) -> tuple[list[int], list[str], Floats]:
    """Return rounds (R,), clients (K,) in natural order and the weights (K, R), NaN
    where a client was not asked.
    """
    rounds = sorted({number for number, _, _ in weights})
    clients = sorted(
        {client for _, client, _ in weights},
        key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name),
    )
    row = {client: place for place, client in enumerate(clients)}
    column = {number: place for place, number in enumerate(rounds)}
    table = np.full((len(clients), len(rounds)), np.nan)
    for number, client, weight in weights:
        table[row[client], column[number]] = weight
    return rounds, clients, table


def _clients_shown(table: Floats) -> tuple[NDArray[np.intp], str]:
    """Return the rows to show, and what they have that others have less of."""
    asked = (~np.isnan(table)).sum(1)
    mean = np.nansum(table, 1) / asked
    order = np.lexsort((-mean, -asked))[:_MAX_CLIENTS]
    return np.sort(
        order
    ), "with the largest weights" if asked.min() == asked.max() else "that were asked most often"


def _fewer_columns(rounds: Sequence[int], table: Floats, most: int) -> tuple[Floats, Floats]:
    """Return the borders of the columns, and the weights: means over adjacent rounds
    where these are too many.
    """
    middles = (np.array(rounds[1:]) + np.array(rounds[:-1])) / 2
    edges = np.concatenate([[rounds[0] - 0.5], middles, [rounds[-1] + 0.5]])
    if len(rounds) <= most:
        return edges, table
    starts = np.arange(0, len(rounds), -(-len(rounds) // most))
    count = np.add.reduceat((~np.isnan(table)).astype(float), starts, axis=1)
    total = np.add.reduceat(np.nan_to_num(table), starts, axis=1)
    means = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return np.append(edges[starts], edges[-1]), means


def fair_measure(runs: Sequence[RunFolder]) -> str:
    """Return of which measure the clients are compared: AUROC where all runs have it,
    else the leading score of most of them.
    """
    if runs and all(run.column("auroc") for run in runs):
        return "auroc"
    return max(LEADING, key=lambda name: sum(bool(run.column(name)) for run in runs))


def worst_first(values: Any, measure: str) -> Floats:
    """Return values (n,) of a measure from the worst to the best."""
    return np.sort(values)[:: -1 if lower_is_better(measure) else 1]


def client_bars(runs: Sequence[RunFolder], labels: Sequence[str], theme: Theme) -> Figure:
    """Return the clients from worst to best, as bars, a panel for each label, at most
    eight.

    Of several runs with one label (seeds), the k-th bar is the mean of the k-th worst
    clients; its whisker goes from the lowest run to the highest. The line in a panel is
    what the bars of the first label are.
    """
    column = fair_measure(runs)
    groups: dict[str, list[RunFolder]] = {}
    for run, label in zip(runs, labels, strict=True):
        if run.column(column):
            groups.setdefault(label, []).append(run)
    shown = list(groups.items())[:_MAX_METHODS]
    rows = 1 if len(shown) <= 4 else 2
    columns = -(-len(shown) // rows)
    figure, axes = panels(rows, columns, (max(6.2, 3.1 * columns), 3.5 * rows + 0.5), theme)
    stacks = [_sorted_clients(members, column) for _, members in shown]
    top = 1.1 * max(stack.max() for stack in stacks)
    top = min(1.02, top) if is_percent(column) else top
    for place, (panel, (label, members), stack) in enumerate(
        zip(axes, shown, stacks, strict=False)
    ):
        _bars(panel, stack, theme)
        if place:
            _outline(panel, stacks[0].mean(0), stack.shape[1], shown[0][0], theme)
        title(
            panel,
            "\n".join(wrap(label, 32, max_lines=2, placeholder="…")),
            11 if len(label) <= 24 else 8.5,
        )
        worst, mean, best = stack[:, 0].mean(), stack.mean(), stack[:, -1].mean()
        told = {"mean": mean, "worst": worst, "gap": abs(best - worst)}
        panel.note = " · ".join(
            f"{name} {metric_text(column, value, unit=False)}" for name, value in told.items()
        )
        panel.y.low, panel.y.high = 0.0, top
        _name_clients(panel, members, column, stack.shape[1])
        if place % columns == 0:
            label_values(panel, column, "on its test set")
        else:
            panel.y.size = 0
    for panel in axes[len(shown) :]:
        panel.hidden = True
    legend(figure, axes[min(1, len(shown) - 1)])
    return figure


def _sorted_clients(members: Sequence[RunFolder], column: str) -> Floats:
    """Return each run's values from worst to best (runs, n); of runs with more clients
    than others, quantiles.
    """
    values = [run.column(column) for run in members]
    share = np.linspace(0, 1, min(map(len, values)))
    return np.array(
        [worst_first(v if len(v) == len(share) else np.quantile(v, share), column) for v in values]
    )


def _bars(axes: Panel, stack: Floats, theme: Theme) -> None:
    heights, n = stack.mean(0), stack.shape[1]
    worst = max(1, -(-n // 10))
    places = np.arange(n, dtype=np.float64)
    few = n <= _MAX_BARS
    name = "worst tenth" if worst > 1 else "worst client"
    for part, colour, label in (
        (slice(worst), theme.series[1], name),
        (slice(worst, n), theme.series[0], ""),
    ):
        if few:
            axes.bars(places[part], heights[part], 0.8, colour, label=label)
        else:  # one shape: bars thinner than a pixel would get lost
            axes.blocks(
                np.append(places[part], part.stop) - 0.5, heights[part], colour, label=label
            )
    if few and len(stack) > 1:
        lowest, highest = (np.stack([places, end], axis=1) for end in (stack.min(0), stack.max(0)))
        axes.whiskers(lowest, highest, theme.muted, 1.1, "lowest to highest run")
        axes.readings.append(
            Reading(
                "lowest to highest run", theme.muted, places, low=stack.min(0), high=stack.max(0)
            )
        )
    axes.level(float(stack.mean()), theme.ink, 1.1, (4, 3), "mean")
    axes.x.low, axes.x.high, axes.x.grid = -0.7, n - 0.3, False


def _outline(axes: Panel, heights: Floats, n: int, label: str, theme: Theme) -> None:
    """Draw another method's bars as a line over ``n`` bars."""
    if len(heights) != n:
        descends = heights[0] > heights[-1]
        heights = np.quantile(heights, np.linspace(0, 1, n))[:: -1 if descends else 1]
    edges = np.arange(n + 1) - 0.5
    axes.steps(
        edges, heights, theme.ink, 1.4 if n <= _MAX_BARS else 0.9, f"{label[:30]}, for comparison"
    )
    axes.readings.append(
        Reading(f"{label[:30]}, for comparison", theme.ink, np.arange(n, dtype=np.float64), heights)
    )


def _name_clients(axes: Panel, members: Sequence[RunFolder], column: str, n: int) -> None:
    axes.x.label, axes.x.label_size, axes.x.size = f"clients, from worst to best ({n})", 9, 8
    if len(members) > 1 or n > 16:  # the k-th worst is not the same client in every run
        axes.x.ticks = [], []
        return
    rows: list[dict[str, Any]] = [
        row for row in members[0].clients if np.isfinite(row.get(column, np.nan))
    ]
    sign = -1 if lower_is_better(column) else 1
    axes.x.names = [str(row["client"]) for row in sorted(rows, key=lambda row: sign * row[column])]
    names = [name[:8] for name in axes.x.names]
    axes.x.ticks, axes.x.upright = (range(n), names), sum(map(len, names)) + n > 34
