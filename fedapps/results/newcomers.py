"""The new clients of a run (``num-new-clients``): their measures over clients, their
rows in clients.csv, and their table.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from algorithms.common.measures import describe_clients, lower_is_better
from fedapps.results.formats import metric_text
from fedapps.results.reader import RunFolder
from fedapps.results.sections import Section

#: The column of clients.csv that marks them.
MARK = "new"
_NAME = re.compile(r"new-[a-z]+(?:-\d+)?")
_MEAN = re.compile(r"new-(accuracy|auroc|rmse)((?:-\d+)?)-mean")

Metrics = Mapping[int | str, Mapping[str, Any]]


def newcomer_rows(metrics: Metrics) -> dict[int | str, dict[str, float]]:
    """Return what clients.csv tells of new clients: their measures, by name
    ``new-NAME`` or ``new-NAME-EPOCHS``, and the mark.
    """
    return {
        client: {
            MARK: 1,
            **{k: v for k, v in values.items() if _NAME.fullmatch(k) and not isinstance(v, list)},
        }
        for client, values in metrics.items()
    }


def newcomer_measures(metrics: Metrics) -> dict[str, float]:
    """Return the mean of every measure over the new clients, and of accuracy, auroc and
    rmse the mean of the worst tenth.
    """
    found: dict[str, list[float]] = {}
    for values in newcomer_rows(metrics).values():
        for name, value in values.items():
            if name != MARK:
                found.setdefault(name, []).append(float(value))
    out: dict[str, float] = {}
    for name, listed in found.items():
        tails = describe_clients(np.array(listed), name, loss=lower_is_better(name))
        out[f"{name}-mean"] = tails[f"{name}-mean"]
        if name.startswith(("new-accuracy", "new-auroc", "new-rmse")):
            out[f"{name}-worst10"] = tails[f"{name}-worst10"]
    return out


def newcomer_means(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of new clients' mean accuracies (AUROC, RMSE) among ``keys``, by
    epochs, each with what a heading says.
    """
    found = {key: int(match[2].lstrip("-") or 0) for key in keys if (match := _MEAN.fullmatch(key))}
    return {
        key: f"new, {_epochs(found[key])}"
        for key in sorted(found, key=lambda key: (key.startswith("new-auroc"), found[key]))
    }


def newcomers_section(run: RunFolder) -> Section | None:
    """Return the table of a run's new clients; ``None`` if it has none."""
    rows = []
    for key, told in newcomer_means(run.evaluation).items():
        others = [
            key,
            key.replace("-mean", "-worst10"),
            re.sub("accuracy|auroc|rmse", "loss", key),
            re.sub("accuracy|auroc|rmse", "ece", key),
        ]
        cells = [
            metric_text(name, run.evaluation[name], unit=False) if name in run.evaluation else "-"
            for name in others
        ]
        rows.append((told.removeprefix("new, ") + (" (AUROC)" if "auroc" in key else ""), *cells))
    if not rows:
        return None
    count = len(run.column(MARK))
    note = (
        f"{count} clients that never took part, on their test samples, after local epochs of "
        "the method's own."
    )
    # in the targets' units, and without a calibration
    if all("rmse" in key for key in newcomer_means(run.evaluation)):
        return Section(
            "New clients",
            note,
            ("trained", "RMSE", "worst 10 %", "loss"),
            tuple(row[:-1] for row in rows),
        )
    return Section(
        "New clients", note, ("trained", "mean %", "worst 10 %", "loss", "ECE"), tuple(rows)
    )


def _epochs(number: int) -> str:
    return "not at all" if not number else "1 epoch" if number == 1 else f"{number} epochs"
