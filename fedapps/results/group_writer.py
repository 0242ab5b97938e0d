"""Measures by group of samples, from the sums that clients report: groups.csv, and the gaps for the round's record.

Sums are untrusted. Those that no samples could add up to are left out, and the client is named with the reason.
"""

import csv
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import log

from algorithms.fairness.groups import Groups, add_up, group_gaps, group_measures

#: The name of the sums among a client's metrics.
SUMS = "group-sums"
#: The columns of groups.csv after the group's name; the last counts are for two classes only.
COLUMNS = ("clients", "samples", "right", "accuracy", "selected", "tpr", "fpr", "ece", "tp", "fp", "fn", "tn")


def write_groups(
    path: Path, groups: Groups, metrics: Mapping[int | str, Mapping[str, Any]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Write the table of the groups; return the gaps between them, and of each client left out its id and the reason.

    ``metrics``: those of every client. Without any sums nothing is written.
    """
    if not any(SUMS in values for values in metrics.values()):
        return {}, []
    sound, left_out = [], []
    for client, values in metrics.items():
        fault = groups.fault(values[SUMS]) if SUMS in values else "none reported"
        if fault is None:
            sound.append(values[SUMS])
        else:
            log(WARNING, "client %s: %s left out: %s", client, SUMS, fault)
            left_out.append({"client": client, "reason": f"{SUMS}: {fault}"})
    total = add_up(sound, groups)
    members = sum((groups.parts(sums).actual.sum(1) > 0 for sums in sound), np.zeros(len(groups.names), int))
    rows = [{"clients": int(count), **row} for count, row in zip(members, group_measures(total, groups), strict=True)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["group", *COLUMNS])
        for name, row in zip(groups.names, rows, strict=True):
            cells = [row.get(column, "") for column in COLUMNS]
            writer.writerow([name, *(int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells)])
    return group_gaps(total, groups), left_out
