"""Plots of fairness: the clients' weights over the rounds, and each client's score,
with one panel per method.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.measures import LEADING, lower_is_better
from fedapps.formats import is_percent, metric_name, metric_text, sentence, shortened
from fedapps.lab.charts.axes import Panel
from fedapps.lab.charts.drawing import (
    Figure,
    heat,
    heat_key,
    label_rounds,
    label_values,
    legend,
    name_cells,
    panels,
    title,
)
from fedapps.lab.charts.theme import Theme
from fedapps.records.reader import RunFolder, as_float

#: More rows or columns than this cannot be distinguished in a heat map.
_MAX_CLIENTS = 40
_MAX_COLUMNS = 240
#: Maximum numbers of methods in one plot, and of clients drawn as single bars.
_MAX_METHODS = 8
_MAX_BARS = 40

Floats = NDArray[np.float64]


def weights_figure(run: RunFolder, theme: Theme) -> Figure | None:
    """Return a heat map of the clients' weights; a client that was not sampled in a
    round has no colour there. ``None`` if the server chose no weights.
    """
    if not run.weights:
        return None
    rounds, clients, table = weights_table(run.weights)
    total = len(clients)
    chosen, reason = _clients_shown(table)
    table, clients = table[chosen], [clients[place] for place in chosen]
    edges, table = _fewer_columns(rounds, table)

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
    heat(axes, table, (low, high), edges=(edges, np.arange(len(clients) + 1) - 0.5))
    name_cells(axes.y, clients, [shortened(client, 8) for client in clients])
    axes.y.down = True
    axes.y.label = (
        f"the {len(clients)} of {total} clients {reason}" if total > len(clients) else "client"
    )
    label_rounds(axes)
    key = heat_key(axes, (low, high), "weight p (line: an equal share)")
    equal = len(set(rounds)) / len(run.weights)
    if low <= equal <= high:
        key.level(equal, theme.series[1], 2)
    return figure


def weights_table(weights: Sequence[tuple[int, str, float]]) -> tuple[list[int], list[str], Floats]:
    """Return rounds (R,), clients (K,) in natural order and the weights (K, R), NaN
    where a client was not sampled.
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
    """Return the rows to show, and a text with the reason for the choice."""
    asked = (~np.isnan(table)).sum(1)
    mean = np.nansum(table, 1) / asked
    order = np.lexsort((-mean, -asked))[:_MAX_CLIENTS]
    return np.sort(
        order
    ), "with the largest weights" if asked.min() == asked.max() else "that were sampled most often"


def _fewer_columns(rounds: Sequence[int], table: Floats) -> tuple[Floats, Floats]:
    """Return the borders of the columns, and the weights. If there are too many rounds,
    these are means over adjacent rounds.
    """
    middles = (np.array(rounds[1:]) + np.array(rounds[:-1])) / 2
    edges = np.concatenate([[rounds[0] - 0.5], middles, [rounds[-1] + 0.5]])
    if len(rounds) <= _MAX_COLUMNS:
        return edges, table
    starts = np.arange(0, len(rounds), -(-len(rounds) // _MAX_COLUMNS))
    count = np.add.reduceat((~np.isnan(table)).astype(float), starts, axis=1)
    total = np.add.reduceat(np.nan_to_num(table), starts, axis=1)
    means = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return np.append(edges[starts], edges[-1]), means


def fair_measure(runs: Sequence[RunFolder]) -> str:
    """Return the measure that clients are compared by: AUROC if all runs have it, else
    the leading score of most runs.
    """
    if runs and all(run.column("auroc") for run in runs):
        return "auroc"
    return max(LEADING, key=lambda name: sum(bool(run.column(name)) for run in runs))


def worst_first(values: Sequence[float] | Floats, measure: str, number: int = 0) -> Floats:
    """Return values (n,) of a measure from the worst to the best. With ``number``,
    return that many quantiles, so that runs with different clients can be compared.
    """
    if number and number != len(values):
        values = np.quantile(values, np.linspace(0, 1, number)).tolist()
    return np.sort(values)[:: -1 if lower_is_better(measure) else 1]


def client_bars(groups: Mapping[str, Sequence[RunFolder]], theme: Theme) -> Figure | None:
    """Return the clients from worst to best as bars, with one panel per label (at most
    eight); ``None`` if no run has scores of its clients.

    With several runs per label (seeds), the k-th bar is the mean of the k-th worst
    clients, and its whisker reaches from the lowest run to the highest. The line in the
    other panels repeats the bars of the first label.
    """
    column = fair_measure([run for members in groups.values() for run in members])
    scored = {
        label: [run for run in members if run.column(column)] for label, members in groups.items()
    }
    shown = [(label, members) for label, members in scored.items() if members][:_MAX_METHODS]
    if not shown:
        return None
    rows = 1 if len(shown) <= 4 else 2
    columns = -(-len(shown) // rows)
    size = max(6.2, 3.1 * columns), 3.5 * rows + 0.5
    figure, axes = panels(rows, columns, size, theme, len(shown))
    stacks = [_sorted_clients(members, column) for _, members in shown]
    top = 1.1 * max(stack.max() for stack in stacks)
    for place, (panel, (label, members), stack) in enumerate(
        zip(axes, shown, stacks, strict=False)
    ):
        _bars(panel, stack, theme)
        if place:
            heights = worst_first(stacks[0].mean(0), column, stack.shape[1])
            # the first method's bars as a line over those of the panel
            places = np.arange(len(heights) + 1) - 0.5
            width = 1.4 if len(heights) <= _MAX_BARS else 0.9
            panel.steps(places, heights, theme.ink, width, f"{shown[0][0][:30]}, for comparison")
        if len(shown) > 1:
            lines = wrap(label, 32, max_lines=2, placeholder="…")
            title(panel, "\n".join(lines), 11 if len(label) <= 24 else 8.5)
        else:
            title(panel, label)
        worst, mean, best = stack[:, 0].mean(), stack.mean(), stack[:, -1].mean()
        summary = {"mean": mean, "worst": worst, "gap": abs(best - worst)}
        panel.note = " · ".join(
            f"{name} {metric_text(column, value, unit=False)}" for name, value in summary.items()
        )
        panel.y.low, panel.y.high = 0.0, min(1.02, top) if is_percent(column) else top
        panel.x.label = f"clients, from worst to best ({stack.shape[1]})"
        panel.x.label_size, panel.x.size = 9, 8
        # The k-th worst client differs between runs, so several runs have no names.
        names = [] if len(members) > 1 else sorted_rows(members[0], column)
        _name_clients(panel, names, 16 if len(shown) > 1 else _MAX_BARS)
        if place % columns == 0:
            label_values(panel, column, "on its test set")
        else:
            panel.y.size = 0
    legend(figure, axes[min(1, len(shown) - 1)])
    return figure


def own_bars(run: RunFolder, theme: Theme) -> Figure | None:
    """Return the clients of one run from worst to best, each with the score of the
    global model on its test set.
    """
    measure = fair_measure([run])
    heading = f"{sentence(metric_name(measure))} of each client, from worst to best"
    if (figure := client_bars({heading: [run]}, theme)) is None:
        return None
    (axes,) = figure.panels
    axes.y.high = 1.02 if is_percent(measure) else None  # room for the global model
    rows = sorted_rows(run, measure)
    own = np.array([row[measure] for row in rows], float)
    # NaN if the run has no score of the global model
    of_global = np.array([as_float(row.get(f"global-{measure}")) for row in rows])
    known = np.flatnonzero(np.isfinite(of_global))
    if (of_global[known] != own[known]).any():
        if few := len(rows) <= _MAX_BARS:  # a rim sets the dots apart from the bars
            axes.dots(known, of_global[known], theme.surface, 6.3)
        axes.dots(known, of_global[known], theme.series[4], 4.7 if few else 2.0, "global model")
        legend(figure, axes)
    return figure


def sorted_rows(run: RunFolder, measure: str) -> list[dict[str, Any]]:
    """Return the rows of clients.csv that have a measure, the worst first."""
    rows = [row for row in run.clients if np.isfinite(as_float(row.get(measure)))]
    return sorted(rows, key=lambda row: row[measure], reverse=lower_is_better(measure))


def _sorted_clients(members: Sequence[RunFolder], column: str) -> Floats:
    """Return each run's values from worst to best (runs, n). Runs with more clients
    than others give quantiles.
    """
    values = [run.column(column) for run in members]
    return np.array([worst_first(one, column, min(map(len, values))) for one in values])


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
        elif len(heights[part]):  # one shape: bars thinner than a pixel would get lost
            edges = np.append(places[part], part.stop) - 0.5
            axes.blocks(edges, heights[part], colour, label=label)
    if few and len(stack) > 1:
        label = "lowest to highest run"
        axes.whiskers(places, stack.min(0), stack.max(0), theme.muted, 1.1, label)
    axes.level(float(stack.mean()), theme.ink, 1.1, (4, 3), "mean")
    axes.x.low, axes.x.high, axes.x.grid = -0.7, n - 0.3, False


def _name_clients(axes: Panel, rows: Sequence[Mapping[str, Any]], most: int) -> None:
    """Write the clients of ``rows`` at the bars, if these are at most ``most``."""
    axes.x.names = [str(row["client"]) for row in rows]
    names = [shortened(name, 8) for name in axes.x.names] if len(rows) <= most else []
    axes.x.ticks, axes.x.upright = (
        (range(len(names)), names),
        sum(map(len, names)) + len(names) > (34 if most < _MAX_BARS else 75),
    )
