"""The table of a run's new clients (``num-new-clients``)."""

import re
from collections.abc import Mapping
from typing import Any

from fedapps.formats import metric_name, metric_text
from fedapps.lab.results.sections import Section
from fedapps.records.measures import MARK
from fedapps.records.reader import RunFolder

_SCORES = "accuracy|auroc|rmse|concordance"
_MEAN = re.compile(rf"new-({_SCORES})((?:-\d+)?)-mean")


def newcomer_means(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of new clients' mean accuracies (AUROC, RMSE) among ``keys``,
    sorted by epochs, each with its heading.
    """
    epochs = {
        key: int(match[2].lstrip("-") or 0) for key in keys if (match := _MEAN.fullmatch(key))
    }
    return {
        key: f"new, {_epochs(epochs[key])}"
        for key in sorted(epochs, key=lambda key: (key.startswith("new-auroc"), epochs[key]))
    }


def newcomers_section(run: RunFolder) -> Section | None:
    """Return the table of a run's new clients; ``None`` if it has none."""
    rows = []
    for key, heading in newcomer_means(run.evaluation).items():
        others = [
            key,
            key.replace("-mean", "-worst10"),
            re.sub(_SCORES, "loss", key),
            re.sub(_SCORES, "ece", key),
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


def _epochs(number: int) -> str:
    return "not at all" if not number else "1 epoch" if number == 1 else f"{number} epochs"
