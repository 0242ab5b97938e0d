"""Concordance and survival by group of risk over all clients, from the counts that
clients report (``algorithms.common.survival``): the rows of risk-groups.csv, and a
measure for the round's record.

Counts are untrusted. Those that cannot be right are left out, and the client is named
with the reason; so is one without a comparable pair.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapps.algorithms.common.measures import PAIRS
from fedapps.algorithms.common.survival import GROUPS, concordance, fault, kaplan_meier
from fedapps.clients.base.scores import SURVIVAL
from fedapps.records.group_writer import sound_lists

#: Why a client is not in the mean of the concordances.
NONE = "no pair of its test samples is comparable"
COLUMNS = ("group", "time", "at-risk", "events", "survival")


def survival_table(
    grid: Sequence[float], metrics: Mapping[int | str, Mapping[str, Any]]
) -> tuple[list[list[Any]], dict[str, float], list[dict[str, Any]]]:
    """Return the table of the curves at the times ``grid``, the concordance of all
    pairs within clients, and of each client left out its id and the reason.

    ``metrics``: those of every client. Without any counts all is empty.
    """
    if not any(PAIRS in values for values in metrics.values()):
        return [], {}, []
    alone = [client for client, values in metrics.items() if values.get(PAIRS) == [0, 0, 0]]
    others = {client: values for client, values in metrics.items() if client not in alone}
    pairs, left_out = sound_lists(PAIRS, others, _fault_of_pairs)
    left_out += [{"client": client, "reason": f"{PAIRS}: {NONE}"} for client in alone]
    pooled = concordance([sum(column) for column in zip(*pairs, strict=True)] if pairs else [])
    measures = {} if pooled is None else {"concordance-pooled": pooled}
    size = len(GROUPS) * 2 * (len(grid) + 1)
    if not len(grid) or not any(SURVIVAL in values for values in metrics.values()):
        return [], measures, left_out
    sound, more = sound_lists(
        SURVIVAL,
        metrics,
        lambda values: fault(values[SURVIVAL], size, values.get("test-samples", 0)),
    )
    total = sum((np.array(counts, np.int64) for counts in sound), np.zeros(size, np.int64))
    table: list[list[Any]] = [list(COLUMNS)]
    for name, (censored, failed) in zip(GROUPS, total.reshape(len(GROUPS), 2, -1), strict=True):
        columns = kaplan_meier(censored, failed)
        rows = zip(grid, columns[0].tolist(), failed.tolist(), columns[1].tolist(), strict=False)
        table += [[name, f"{time:.6g}", n, d, "" if np.isnan(s) else s] for time, n, d, s in rows]
    return (table if total.any() else []), measures, left_out + more


def _fault_of_pairs(values: Mapping[str, Any]) -> str | None:
    counts, own = values[PAIRS], values.get("concordance")
    if found := fault(counts, 3, values.get("test-samples", 0)):
        return found
    c = concordance(counts)
    if c is None or not isinstance(own, float) or abs(c - own) > 1e-6:
        return f"the counts have concordance {c}, the client {own}"
    return None
