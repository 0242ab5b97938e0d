"""A table of the worst clients of runs, each number with its interval."""

from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from fedapps.algorithms.fairness.shrinkage import Uncertain
from fedapps.formats import percent_text
from fedapps.lab.results.comparison_table import Row
from fedapps.lab.results.sections import Section
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
        if statistics and all(statistics):
            cells = (_cells([one[name] for one in statistics]) for name in ("tail", "worst", "gap"))
            table.append((row.label, *chain.from_iterable(cells)))
    if not table:
        return None
    shown = (f"worst {100 * share:g} %", "worst client", "gap")
    header = ("method", *chain.from_iterable((f"{one}, measured", "estimate") for one in shown))
    means = " With several seeds: means." * any(len(row.runs) > 1 for row in rows)
    return Section("Worst clients, on their test samples", _NOTE + means, header, tuple(table))


_NOTE = (
    "Accuracy in %. Chance makes the worst of many clients look worse than it is, the more so with "
    "few test samples. The estimate corrects this: how would these clients score on endless test "
    "samples, with a 95 % interval?"
)


def _cells(values: Sequence[Uncertain]) -> tuple[str, str]:
    value, estimate, low, high = (
        percent_text(fmean(getattr(one, name) for one in values), unit=False)
        for name in ("value", "estimate", "low", "high")
    )
    return value, f"{estimate}\n{low}\N{EN DASH}{high}"
