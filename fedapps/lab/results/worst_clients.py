"""A table of the worst clients of runs, each number with its interval."""

from collections.abc import Sequence

import numpy as np

from fedapps.algorithms.common.measures import describe_clients
from fedapps.algorithms.fairness.shrinkage import Uncertain
from fedapps.formats import metric_text, percent_text
from fedapps.lab.results.comparison_table import Row
from fedapps.lab.results.sections import Section
from fedapps.records.reader import RunFolder
from fedapps.records.uncertainty import SHARE, of_clients


def worst_section(rows: Sequence[Row], share: float = SHARE) -> Section | None:
    """Return the worst clients and the gap, one row per setting: means over its seeds.

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
        cells = [
            cell
            for name in ("tail", "worst", "gap")
            for cell in _cells([one[name] for one in statistics])
        ]
        shown = [metric_text("loss", _mean(values)) for values in zip(*losses, strict=True)] or [
            "-",
            "-",
        ]
        table.append((row.label, *cells, *shown))
    if not table:
        return None
    tail = f"worst {100 * share:g} %"
    header = (
        "method",
        f"{tail}, measured",
        "estimate",
        "worst client, measured",
        "estimate",
        "gap, measured",
        "estimate",
        f"loss, {tail}",
        "loss, worst",
    )
    several = any(len(row.runs) > 1 for row in rows)
    note = _NOTE + (" With several seeds: means." if several else "")
    return Section("Worst clients, on their test samples", note, header, tuple(table))


_NOTE = (
    "Accuracy in %. Chance makes the worst of many clients look worse than it is, the more so with "
    "few test samples. The estimate corrects this: how would these clients score on endless test "
    "samples, with a 95 % interval?"
)


def _cells(values: Sequence[Uncertain]) -> tuple[str, str]:
    value, estimate, low, high = (
        percent_text(_mean([getattr(one, name) for one in values]), unit=False)
        for name in ("value", "estimate", "low", "high")
    )
    return value, f"{estimate}\n{low}\N{EN DASH}{high}"


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
