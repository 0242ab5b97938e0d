"""Tables of a report: scores by group of samples (the groups of one run, the gaps of
several), a run's new clients (``num-new-clients``), the worst clients with intervals,
and who was in secure sums, and what these cost.
"""

import re
from collections.abc import Sequence
from itertools import chain
from statistics import fmean, median
from typing import Any

import numpy as np

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.fairness.shrinkage import Uncertain, uncertainty
from fedapps.formats import (
    bytes_text,
    few,
    metric_name,
    metric_text,
    one_line,
    percent_text,
    seconds_text,
)
from fedapps.lab.results.comparison_table import SCORES, Row, newcomer_means
from fedapps.lab.results.sections import Section
from fedapps.records.measures import MARK
from fedapps.records.reader import RunFolder, is_number
from fedapps.records.tables import SUMS
from fedapps.records.uncertainty import SHARE, of_clients

#: With fewer samples than this, a share is shown as two counts.
FEW = 20
_HEADERS = {"selected": "predicted 1", "tpr": "TPR", "fpr": "FPR"}
#: Gaps in the order of the table of several runs, with their headings.
GAPS = {
    "group-accuracy-worst": "accuracy, worst",
    "group-accuracy-gap": "accuracy gap",
    "demographic-parity-gap": "demographic parity",
    "equalised-odds-gap": "equalised odds",
    "group-tpr-gap": "TPR gap",
    "group-fpr-gap": "FPR gap",
    "group-ece-worst": "ECE, worst",
}


def groups_section(run: RunFolder) -> Section | None:
    """Return the groups of a run, one per row; ``None`` if it has none."""
    if not run.groups:
        return None
    rates = [name for name in _HEADERS if any(name in row for row in run.groups)]
    header = ("group", "samples", "clients", "accuracy", *(_HEADERS[name] for name in rates), "ECE")
    rows = []
    for row in run.groups:
        shares = [_share(row, name) for name in ("accuracy", *rates)]
        ece = row.get("ece")
        calibration = (
            metric_text("ece", ece) if is_number(ece) and _number(row, "samples") >= FEW else "-"
        )
        name = one_line(str(row["group"]), 40)
        rows.append(
            (
                name,
                f"{_number(row, 'samples'):g}",
                f"{_number(row, 'clients'):g}",
                *shares,
                calibration,
            )
        )
    gaps = ", ".join(
        f"{label} {metric_text(key, run.numbers[key])}"
        for key, label in GAPS.items()
        if key in run.numbers
    )
    notes = [
        "Test samples of all clients together, by "
        f"{one_line(str(run.settings.get('data.group', 'group')), 40)}.",
        f"With fewer than {FEW} samples, a share is shown as counts.",
        *([f"Between groups: {gaps}."] if gaps else []),
        *_chance(run),
    ]
    if left_out := run.left_out(SUMS):
        notes.append(
            f"Skipped the impossible sums of client {few(left_out)}; rounds.jsonl has the reasons."
        )
    return Section("Groups", " ".join(notes), header, tuple(rows))


def _chance(run: RunFolder) -> list[str]:
    """Return a sentence on the gap without chance's part; [] unless two groups have
    samples.
    """
    counts = [(_number(row, "right"), _number(row, "samples")) for row in run.groups]
    counts = [(right, n) for right, n in counts if n >= 1]
    if len(counts) < 2 or not all(0 <= right <= n < 2**53 for right, n in counts):
        return []
    right, samples = np.array(counts).astype(np.int64).T
    seed = run.seed if isinstance(run.seed, int) and run.seed >= 0 else 0
    gap = uncertainty(right, samples, generator(seed, "rates of groups"))["gap"]
    between = f"{percent_text(gap.low, unit=False)} to {percent_text(gap.high)}"
    return [
        f"The gap of accuracy without the part of chance: {percent_text(gap.estimate)} ({between})."
    ]


def gaps_section(rows: Sequence[Row]) -> Section | None:
    """Return the gaps between the groups, one row per run (or per setting with several
    seeds); ``None`` if no run has groups.
    """
    keys = [key for key in GAPS if any(key in row.values for row in rows)]
    shown = [row for row in rows if any(key in row.values for key in keys)]
    if not shown:
        return None
    table = tuple((row.label, *(_mean(row, key) for key in keys)) for row in shown)
    columns = {
        one_line(str(run.settings.get("data.group", "")), 40) for row in shown for run in row.runs
    }
    note = (
        f"Test samples of all clients together, by {', '.join(sorted(columns))}. A gap is the "
        "highest minus the lowest rate of the groups. The rates of each group are in the run's "
        "report and groups.csv."
    )
    return Section("Groups", note, ("method", *(GAPS[key] for key in keys)), table)


def _mean(row: Row, key: str) -> str:
    if key not in row.values:
        return "-"
    mean, std = row.values[key]
    return metric_text(key, mean) + (
        "" if std is None else f" ±{metric_text(key, std, unit=False)}"
    )


def _share(row: dict[str, Any], name: str) -> str:
    """Return a rate of a group in per cent, or as counts if it has few samples, or "-"
    if it has none or its counts are unknown.
    """
    tp, fp, fn, tn = (_number(row, key) for key in ("tp", "fp", "fn", "tn"))
    upper, lower = {
        "accuracy": (_number(row, "right"), _number(row, "samples")),
        "selected": (tp + fp, tp + fp + fn + tn),
        "tpr": (tp, tp + fn),
        "fpr": (fp, fp + tn),
    }[name]
    # with more than two classes there are no counts by class
    many = lower if "tp" in row or name == "accuracy" else _number(row, "samples")
    if not is_number(row.get(name)) or (many < FEW and many != lower):
        return "-"
    return percent_text(row[name]) if many >= FEW else f"{upper:g} of {lower:g}"


def _number(row: dict[str, Any], key: str) -> float:
    value = row.get(key, 0)
    return float(value) if is_number(value) else 0.0


def newcomers_section(run: RunFolder) -> Section | None:
    """Return the table of a run's new clients; ``None`` if it has none."""
    rows = []
    for key, heading in newcomer_means(run.evaluation).items():
        others = [
            key,
            key.replace("-mean", "-worst10"),
            re.sub(SCORES, "loss", key),
            re.sub(SCORES, "ece", key),
        ]
        cells = [
            metric_text(name, run.evaluation[name], unit=False) if name in run.evaluation else "-"
            for name in others
        ]
        rows.append(
            (heading.removeprefix("new, ") + (" (AUROC)" if "auroc" in key else ""), *cells)
        )
    if not rows:
        return None
    count = len(run.column(MARK))
    note = (
        f"{count} clients that never took part, scored on their test samples after the given "
        "number of the method's local epochs."
    )
    # errors are in the targets' units; neither these nor times have a calibration
    found = newcomer_means(run.evaluation)
    if name := next((n for n in ("rmse", "concordance") if all(n in key for key in found)), ""):
        return Section(
            "New clients",
            note,
            ("trained", metric_name(name), "worst 10 %", "loss"),
            tuple(row[:-1] for row in rows),
        )
    return Section(
        "New clients", note, ("trained", "mean %", "worst 10 %", "loss", "ECE"), tuple(rows)
    )


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


def secure_section(run: RunFolder) -> Section | None:
    """Return the table; ``None`` if the run made no secure sums."""
    if run.settings.get("secure.on") is not True:
        return None
    summed = [row for row in run.rounds if "secure-survivors" in row]
    asked = sum(row["secure-asked"] for row in summed)
    inside = [int(row["secure-survivors"]) for row in summed]
    cells = ("-",) * 5
    if summed:
        spent = sum(row["secure-seconds"] for row in summed)
        plain = sum(row["bytes-up"] for row in summed)
        cells = (
            f"{min(inside)} to {max(inside)}",
            percent_text(sum(inside) / max(1, asked)),
            f"{median(row['secure-phases'] for row in summed):g}",
            f"{seconds_text(spent / len(summed))}",
            f"{bytes_text(sum(row['travelled-up'] for row in summed) / len(summed))}"
            + (f"\n{sum(r['travelled-up'] for r in summed) / plain:.2f} times" if plain else ""),
        )
    rounds = f"{len(summed)} of {len(run.rounds)}"
    header = ("rounds summed", "clients in a sum", "of those asked", "extra phases")
    note = (
        "The server learnt sums, and no single reply. Extra phases: the median of a round; "
        "seconds: of a round beside the training; sent up: by all clients in a round, and how "
        "many times the bytes of replies in the clear. A round without a sum kept the model."
    )
    return Section("Secure sums", note, (*header, "seconds", "sent up"), ((rounds, *cells),))
