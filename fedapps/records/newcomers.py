"""The new clients of a run (``num-new-clients``): their measures over clients and
their rows in clients.csv.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedapps.algorithms.common.measures import describe_clients, lower_is_better

#: The column of clients.csv that marks them.
MARK = "new"
_NAME = re.compile(r"new-[a-z]+(?:-\d+)?")

Metrics = Mapping[int | str, Mapping[str, Any]]


def newcomer_rows(metrics: Metrics) -> dict[int | str, dict[str, float]]:
    """Return the rows of new clients in clients.csv: the mark, and their measures named
    ``new-NAME`` or ``new-NAME-EPOCHS``.
    """
    return {
        client: {
            MARK: 1,
            **{k: v for k, v in values.items() if _NAME.fullmatch(k) and not isinstance(v, list)},
        }
        for client, values in metrics.items()
    }


def newcomer_measures(metrics: Metrics) -> dict[str, float]:
    """Return the mean of every measure over the new clients, and for accuracy, auroc,
    rmse and concordance also the mean of the worst tenth.
    """
    by_measure: dict[str, list[float]] = {}
    for values in newcomer_rows(metrics).values():
        for name, value in values.items():
            if name != MARK:
                by_measure.setdefault(name, []).append(float(value))
    out: dict[str, float] = {}
    for name, measured in by_measure.items():
        tails = describe_clients(np.array(measured), name, loss=lower_is_better(name))
        out[f"{name}-mean"] = tails[f"{name}-mean"]
        if name.startswith(("new-accuracy", "new-auroc", "new-rmse", "new-concordance")):
            out[f"{name}-worst10"] = tails[f"{name}-worst10"]
    return out
