"""The confusion matrix of all clients' test samples, from the counts that clients
report: the rows of confusion.csv, and macro means for the round's record.

Counts are untrusted. Those that cannot be right are left out, and the client is named
with the reason.
"""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np

from fedapps.algorithms.common.confusion import fault, macro_measures, margins
from fedapps.clients.base.scores import CONFUSION
from fedapps.records.group_writer import sound_lists
from fedapps.strategies.base.records import most_common


def confusion_table(
    classes: Sequence[str], metrics: Mapping[int | str, Mapping[str, Any]]
) -> tuple[list[list[Any]], dict[str, float], list[dict[str, Any]]]:
    """Return the matrix as a table, the macro means, and of each client left out its id
    and the reason.

    ``classes``: their names; () if unknown: then the size is what most clients have.
    ``metrics``: those of every client. Without any counts all is empty.
    """
    reported = {c: values[CONFUSION] for c, values in metrics.items() if CONFUSION in values}
    if not reported:
        return [], {}, []
    sizes = [len(counts) if isinstance(counts, list) else 0 for counts in reported.values()]
    number = len(classes) or isqrt(most_common(sizes))
    sound, left_out = sound_lists(
        CONFUSION, metrics, lambda values: fault(values[CONFUSION], number, dict(values))
    )
    total = sum((np.array(counts, np.int64) for counts in sound), np.zeros(number**2, np.int64))
    total = total.reshape(number, number)
    if not total.any():
        return [], {}, left_out
    names = list(classes) or [str(place) for place in range(number)]
    table: list[list[Any]] = [["actual", *names]]
    table += [[name, *row] for name, row in zip(names, total.tolist(), strict=True)]
    pooled = macro_measures(*margins(total))
    return table, {f"{name}-pooled": value for name, value in pooled.items()}, left_out
