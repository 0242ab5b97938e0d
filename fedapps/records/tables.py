"""The tables of an evaluation from counts and sums that clients report: groups of
samples (groups.csv), the confusion matrix (confusion.csv), survival by group of risk
(risk-groups.csv); each with its measures over all clients for the round's record.

What clients report is untrusted. Counts that no samples could produce are left out, and
the log names the client and the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from math import isqrt
from typing import Any

import numpy as np
from flwr.common import log

from fedapps.algorithms.common import confusion, survival
from fedapps.algorithms.common.measures import PAIRS
from fedapps.algorithms.fairness.groups import Groups, add_up, group_gaps, group_measures
from fedapps.clients.base.scores import CONFUSION, SURVIVAL
from fedapps.strategies.base.records import most_common

#: The metrics of a client, by client.
Metrics = Mapping[int | str, Mapping[str, Any]]
#: A table, its measures, and of each client left out its id and the reason.
Found = tuple[list[list[Any]], dict[str, float], list[dict[str, Any]]]
#: The name of the sums of groups among a client's metrics.
SUMS = "group-sums"
#: The columns of groups.csv after the group's name. The last four counts exist only for
#: two classes.
GROUP_COLUMNS = (
    *("clients", "samples", "right", "accuracy", "selected", "tpr", "fpr", "ece"),
    *("tp", "fp", "fn", "tn"),
)


def sound_lists(
    name: str,
    metrics: Metrics,
    fault_of: Callable[[Mapping[str, Any]], str | None],
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the clients' metric ``name``, a list each, and the id and the reason of
    each client without a sound one; the log names these.

    ``fault_of``: why a client's list cannot be right, given its metrics, or ``None``.
    """
    sound, left_out = [], []
    for client, values in metrics.items():
        fault = fault_of(values) if name in values else "none reported"
        if fault is None:
            sound.append(values[name])
        else:
            log(WARNING, "client %s: skipped its %s: %s", client, name, fault)
            left_out.append({"client": client, "reason": f"{name}: {fault}"})
    return sound, left_out


def group_table(groups: Groups, metrics: Metrics) -> Found:
    """Return the table of the groups, the gaps between them, and the id and the reason
    of each skipped client.

    ``metrics``: the metrics of every client. Without sums all three are empty.
    """
    if not any(SUMS in values for values in metrics.values()):
        return [], {}, []
    sound, left_out = sound_lists(SUMS, metrics, lambda values: groups.fault(values[SUMS]))
    total = add_up(sound, groups)
    members = sum(
        (groups.parts(sums).actual.sum(1) > 0 for sums in sound), np.zeros(len(groups.names), int)
    )
    rows = [
        {"clients": int(count), **row}
        for count, row in zip(members, group_measures(total, groups), strict=True)
    ]
    table: list[list[Any]] = [["group", *GROUP_COLUMNS]]
    for name, row in zip(groups.names, rows, strict=True):
        cells = [row.get(column, "") for column in GROUP_COLUMNS]
        table.append(
            [
                name,
                *(
                    int(cell) if isinstance(cell, float) and cell.is_integer() else cell
                    for cell in cells
                ),
            ]
        )
    return table, group_gaps(total, groups), left_out


def confusion_table(classes: Sequence[str], metrics: Metrics) -> Found:
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
        CONFUSION, metrics, lambda values: confusion.fault(values[CONFUSION], number, dict(values))
    )
    total = sum((np.array(counts, np.int64) for counts in sound), np.zeros(number**2, np.int64))
    total = total.reshape(number, number)
    if not total.any():
        return [], {}, left_out
    names = list(classes) or [str(place) for place in range(number)]
    table: list[list[Any]] = [["actual", *names]]
    table += [[name, *row] for name, row in zip(names, total.tolist(), strict=True)]
    pooled = confusion.macro_measures(*confusion.margins(total))
    return table, {f"{name}-pooled": value for name, value in pooled.items()}, left_out


#: Why a client is not in the mean of the concordances.
NONE = "no pair of its test samples is comparable"
RISK_COLUMNS = ("group", "time", "at-risk", "events", "survival")


def survival_table(grid: Sequence[float], metrics: Metrics) -> Found:
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
    pooled = survival.concordance(
        [sum(column) for column in zip(*pairs, strict=True)] if pairs else []
    )
    measures = {} if pooled is None else {"concordance-pooled": pooled}
    size = len(survival.GROUPS) * 2 * (len(grid) + 1)
    if not len(grid) or not any(SURVIVAL in values for values in metrics.values()):
        return [], measures, left_out
    sound, more = sound_lists(
        SURVIVAL,
        metrics,
        lambda values: survival.fault(values[SURVIVAL], size, values.get("test-samples", 0)),
    )
    total = sum((np.array(counts, np.int64) for counts in sound), np.zeros(size, np.int64))
    table: list[list[Any]] = [list(RISK_COLUMNS)]
    for name, (censored, failed) in zip(
        survival.GROUPS, total.reshape(len(survival.GROUPS), 2, -1), strict=True
    ):
        columns = survival.kaplan_meier(censored, failed)
        rows = zip(grid, columns[0].tolist(), failed.tolist(), columns[1].tolist(), strict=False)
        table += [[name, f"{time:.6g}", n, d, "" if np.isnan(s) else s] for time, n, d, s in rows]
    return (table if total.any() else []), measures, left_out + more


def _fault_of_pairs(values: Mapping[str, Any]) -> str | None:
    counts, own = values[PAIRS], values.get("concordance")
    if found := survival.fault(counts, 3, values.get("test-samples", 0)):
        return found
    c = survival.concordance(counts)
    if c is None or not isinstance(own, float) or abs(c - own) > 1e-6:
        return f"the counts have concordance {c}, the client {own}"
    return None
