"""A table of the worst clients of runs, each number with its interval."""

from collections.abc import Sequence

import numpy as np

from fedapps.algorithms.common.measures import describe_clients
from fedapps.algorithms.fairness.resampling import Uncertain
from fedapps.formats import metric_text, percent_text
from fedapps.lab.results.comparison_table import Row
from fedapps.lab.results.sections import Section
from fedapps.records.reader import RunFolder
from fedapps.records.uncertainty import SHARE, of_clients


def worst_section(rows: Sequence[Row], share: float = SHARE) -> Section | None:
    """Return the worst clients and the gap, one row per setting: means over its seeds,
    and the largest of their p-values.

    ``None`` if no run has two clients that report the number of their test samples.
    """
    table = []
    for row in rows:
        statistics = [
            of_clients(run.clients, run.seed, share) for run in row.runs if len(run.clients) > 1
        ]
        losses = [tails for run in row.runs if (tails := _losses(run, share))]
        if not statistics or not all(statistics):
            continue
        gap = [one["gap"] for one in statistics]
        cells = [
            _with_interval([one[name] for one in statistics]) for name in ("tail", "worst", "gap")
        ]
        chance, p = _mean([one.chance or 0.0 for one in gap]), max(one.p or 0.0 for one in gap)
        shown = [metric_text("loss", _mean(values)) for values in zip(*losses, strict=True)] or [
            "-",
            "-",
        ]
        table.append((row.label, *cells, percent_text(chance, unit=False), f"{p:.3f}", *shown))
    if not table:
        return None
    tail = f"worst {100 * share:g} %"
    header = (
        "method",
        tail,
        "worst client %",
        "gap %",
        "by chance %",
        "p",
        f"loss, {tail}",
        "loss, worst",
    )
    several = any(len(row.runs) > 1 for row in rows)
    note = _NOTE + (" With several seeds: means, and the largest p." if several else "")
    return Section("Worst clients, on their test samples", note, header, tuple(table))


_NOTE = (
    "Accuracy, with a 95 % confidence interval: how would these clients score on other test "
    "samples? By chance: the gap that equally good clients would show with as few samples. p: how "
    "often chance alone would produce a gap as large as this one. A large p, or a value outside "
    "its own interval, means that the clients differ by no more than chance alone would produce."
)


def _with_interval(values: Sequence[Uncertain]) -> str:
    value, low, high = (
        percent_text(_mean([getattr(one, name) for one in values]), unit=False)
        for name in ("value", "low", "high")
    )
    return f"{value}\n{low}\N{EN DASH}{high}"


def _losses(run: RunFolder, share: float) -> tuple[float, float] | None:
    """Return the mean test loss of the worst ``share`` of the clients and of the worst
    client.
    """
    for name in ("test-loss", "loss"):  # ``loss`` is the training loss where a client has both
        if values := run.column(name):
            tails = describe_clients(np.array(values), "loss", share, loss=True)
            return tails[f"loss-worst{100 * share:g}"], tails["loss-worst"]
    return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
