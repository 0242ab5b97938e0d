"""Measures by group of samples, from the sums that clients report: the rows of
groups.csv, and the gaps for the round's record.

Sums are untrusted. Sums that no samples could produce are skipped, and the log names
the client and the reason.
"""

from collections.abc import Callable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import log

from fedapps.algorithms.fairness.groups import Groups, add_up, group_gaps, group_measures

#: The name of the sums among a client's metrics.
SUMS = "group-sums"
#: The columns of groups.csv after the group's name. The last four counts exist only for
#: two classes.
COLUMNS = (
    "clients",
    "samples",
    "right",
    "accuracy",
    "selected",
    "tpr",
    "fpr",
    "ece",
    "tp",
    "fp",
    "fn",
    "tn",
)


def sound_lists(
    name: str,
    metrics: Mapping[int | str, Mapping[str, Any]],
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


def group_table(
    groups: Groups, metrics: Mapping[int | str, Mapping[str, Any]]
) -> tuple[list[list[Any]], dict[str, float], list[dict[str, Any]]]:
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
    table: list[list[Any]] = [["group", *COLUMNS]]
    for name, row in zip(groups.names, rows, strict=True):
        cells = [row.get(column, "") for column in COLUMNS]
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
