"""How well a run's worst clients really do (``algorithms.fairness.shrinkage``).

Everything is computed from clients.csv: each client's accuracy and number of test
samples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.fairness.shrinkage import Uncertain, uncertainty
from fedapps.records.reader import is_number

SHARE = 0.1
#: Names of the statistics in summary.json.
_KEYS = {
    "mean": "accuracy-mean",
    "tail": "accuracy-worst10",
    "worst": "accuracy-worst",
    "gap": "parity-gap",
}


def of_clients(
    clients: Sequence[Mapping[str, Any]], seed: object, share: float = SHARE
) -> dict[str, Uncertain]:
    """Return the statistics of the clients' accuracies; {} unless every client reports
    the number of test samples behind its accuracy.

    The accuracy on text is a mean over characters, which are not independent samples;
    such clients report no number.
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
    rng = generator(seed if isinstance(seed, int) and seed >= 0 else 0, "rates of clients")
    return uncertainty(right, samples, rng, share)


def as_numbers(statistics: Mapping[str, Uncertain]) -> dict[str, float]:
    """Return estimates and the bounds of their intervals, for summary.json."""
    return {
        f"{_KEYS[name]}-{end}": getattr(one, end)
        for name, one in statistics.items()
        for end in ("low", "high", *["estimate"] * (name != "mean"))
    }
