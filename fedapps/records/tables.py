"""The tables of an evaluation from counts and sums that clients report: groups of
samples (groups.csv) and the confusion matrix (confusion.csv), with their measures over
all clients for the round's record; and the concordance of all pairs, without a table.

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
from fedapps.clients.base.scores import CONFUSION
from fedapps.strategies.base.messages import most_common

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


def pooled_concordance(metrics: Metrics) -> Found:
    """Return the concordance of all pairs within clients, and of each client left out
    its id and the reason.

    ``metrics``: those of every client. Without any counts all is empty.
    """
    if not any(PAIRS in values for values in metrics.values()):
        return [], {}, []
    sound, left_out = sound_lists(PAIRS, metrics, _fault_of_pairs)
    pooled = survival.concordance([sum(column) for column in zip(*sound, strict=True)])
    return [], {} if pooled is None else {"concordance-pooled": pooled}, left_out


def _fault_of_pairs(values: Mapping[str, Any]) -> str | None:
    counts, own = values[PAIRS], values.get("concordance")
    if found := survival.fault(counts, values.get("test-samples", 0)):
        return found
    if (c := survival.concordance(counts)) is None:
        return "no pair of its test samples is comparable"
    if not isinstance(own, float) or abs(c - own) > 1e-6:
        return f"the counts have concordance {c}, the client {own}"
    return None
