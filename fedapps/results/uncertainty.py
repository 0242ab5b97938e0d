"""The worst clients of runs, as a table, and how much of what they show is due to
chance (``algorithms.fairness.resampling``).

Everything follows from clients.csv: a client's accuracy, the number of its test
samples, its test loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.common.measures import describe_clients
from algorithms.common.seeds import generator
from algorithms.fairness.resampling import Uncertain, uncertainty
from fedapps.results.comparison_table import Row
from fedapps.results.formats import metric_text, percent_text
from fedapps.results.reader import RunFolder, is_number
from fedapps.results.sections import Section

SHARE = 0.1
#: Names of the statistics in summary.json; the tail is named by its share.
_KEYS = {
    "mean": "accuracy-mean",
    "tail": "accuracy-worst10",
    "worst": "accuracy-worst",
    "gap": "parity-gap",
}


def of_clients(
    clients: Sequence[Mapping[str, Any]], seed: object, share: float = SHARE
) -> dict[str, Uncertain]:
    """Return the statistics of the clients' accuracies; {} unless all have an accuracy
    and tell of how many samples it is the mean.

    The accuracy of text is a mean over its characters, which are no independent
    samples: such clients tell no number.
    """
    scored = [client for client in clients if is_number(client.get("accuracy"))]
    accuracies = np.array([client["accuracy"] for client in scored], float)
    numbers = np.array(
        [n if is_number(n := client.get("test-samples")) else 0 for client in scored], float
    )
    if (
        not len(scored)
        or not ((numbers >= 1) & (numbers < 2**53) & (accuracies >= 0) & (accuracies <= 1)).all()
    ):
        return {}
    samples = numbers.astype(np.int64)
    right = np.rint(accuracies * samples).astype(np.int64)
    rng = generator(seed if isinstance(seed, int) and seed >= 0 else 0, "bootstrap of test samples")
    return uncertainty(right, samples, rng, share)


def as_numbers(found: Mapping[str, Uncertain]) -> dict[str, float]:
    """Return the bounds of the intervals, what is due to chance, and the p-value of the
    gap, for summary.json.
    """
    out: dict[str, float] = {}
    for name, key in _KEYS.items():
        if name in found:
            out |= {f"{key}-low": found[name].low, f"{key}-high": found[name].high}
            if (chance := found[name].chance) is not None:
                out[f"{key}-chance"] = chance
    if found and (p := found["gap"].p) is not None:
        out["parity-gap-p"] = p
    return out


def worst_section(rows: Sequence[Row], share: float = SHARE) -> Section | None:
    """Return worst clients and gap of runs, one setting a row: means over its seeds,
    with the largest of their p-values.

    ``None`` if no run has two clients that tell the number of their test samples.
    """
    table = []
    for row in rows:
        found = [
            of_clients(run.clients, run.seed, share) for run in row.runs if len(run.clients) > 1
        ]
        losses = [tails for run in row.runs if (tails := _losses(run, share))]
        if not found or not all(found):
            continue
        gap = [one["gap"] for one in found]
        cells = [_with_interval([one[name] for one in found]) for name in ("tail", "worst", "gap")]
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
    note = _NOTE + (" Of several seeds: means, and the largest p." if several else "")
    return Section("Worst clients, on their test samples", note, header, tuple(table))


_NOTE = (
    "Accuracy, with the 95 % interval of other test samples of the same clients. By chance: the "
    "gap that clients of one and the same "
    "accuracy would show with so few samples; p: how often it would be as large as the one "
    "measured. Where p is large, or a value lies "
    "outside of its own interval, the clients differ by no more than that."
)


def _with_interval(found: Sequence[Uncertain]) -> str:
    value, low, high = (
        percent_text(_mean([getattr(one, name) for one in found]), unit=False)
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
