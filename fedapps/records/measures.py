"""The measures of an evaluation over clients, for the round's record: means and spread
of what they report, pooled errors, those of new clients, and mean curves.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.measures import (
    LEADING,
    describe_clients,
    gini,
    lower_is_better,
    parity_gap,
)
from fedapps.algorithms.common.target_errors import CHANNELS, errors_of, pooled
from fedapps.clients.base.scores import CONFUSION, ERROR_SUMS
from fedapps.records.tables import SUMS, Metrics
from fedapps.strategies.base.messages import most_common

#: A client whose test loss is larger has diverged: a standardised squared error of 100
#: deviations, a cross-entropy that no net in single precision has.
DIVERGED = 1e4
# Metrics of clients whose mean is not reported.
COUNTS = ("num-examples", "test-samples", SUMS, CONFUSION)
# Metrics whose spread over the clients is reported, and the name prefix of their Gini
# coefficient and parity gap.
FAIRNESS = {"accuracy": "", "auroc": "auroc-", "concordance": "concordance-"}
# Losses whose spread is reported beside that of the accuracy. If a client reports
# ``test-loss``, its ``loss`` is the training loss.
LOSSES = ("test-loss", "loss")


def sound(metrics: Metrics) -> tuple[Metrics, list[dict[str, Any]]]:
    """Return the clients' metrics without those of models that diverged, and these
    clients with their losses; all metrics if every one diverged.
    """
    diverged = {
        client: values["loss"]
        for client, values in metrics.items()
        if not set(LEADING).isdisjoint(values)
        and isinstance(values.get("loss"), float)
        and values["loss"] > DIVERGED
    }
    kept = {client: values for client, values in metrics.items() if client not in diverged}
    named = [{"client": client, "loss": loss} for client, loss in diverged.items()]
    return kept or metrics, named


def summarise(metrics: Metrics) -> dict[str, float]:
    """Return the mean of every scalar metric over the clients that report it, and
    fairness metrics of accuracy, auroc and concordance.

    Gini coefficient and parity gap of the accuracy are ``gini`` and ``parity-gap``;
    those of the others have a prefix, as ``auroc-``. If clients report a leading score,
    their test loss and rmse also have ``-std``, ``-worst10``, ``-best10`` and
    ``-worst``; here the worst values are the highest.
    """
    out: dict[str, float] = {}
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    usual = [
        name
        for name in LOSSES
        if 2 * sum(name in values for values in metrics.values()) > len(metrics)
    ]
    spread_errors = {"rmse", *usual[:1]} if not set(LEADING).isdisjoint(names) else set()
    for name in names:
        listed = [
            client[name]
            for client in metrics.values()
            if name in client and not isinstance(client[name], list)
        ]
        if name in COUNTS or not listed:
            continue
        values = np.array(listed, dtype=float)
        if name in FAIRNESS and values.min() >= 0:  # client-reported values are untrusted
            spread = {"gini": gini(values), "parity-gap": parity_gap(values)}
            out |= describe_clients(values, name) | {
                FAIRNESS[name] + key: value for key, value in spread.items()
            }
        elif name in spread_errors:
            out |= describe_clients(values, name, loss=True)
        else:
            out[f"{name}-mean"] = float(np.mean(values))
    return out


def mean_curves(metrics: Metrics) -> dict[str, list[float]]:
    """Return mean and std over clients of the list metrics ``X-Y`` that have a grid
    ``X-grid``, and the grid as ``X``.
    """
    lists: dict[str, list[list[float]]] = {}
    for values in metrics.values():
        for name, value in values.items():
            if isinstance(value, list):
                lists.setdefault(name, []).append(value)
    tables = {}
    for name, rows in lists.items():
        length = most_common([len(row) for row in rows])
        tables[name] = np.array([row for row in rows if len(row) == length], dtype=float)
    curves: dict[str, list[float]] = {}
    for grid in (name for name in tables if name.endswith("-grid")):
        axis = grid.removesuffix("-grid")
        # All clients should have the same grid; with the median, a single one cannot
        # change it.
        curves[axis] = np.median(tables[grid], axis=0).tolist()
        for name in (name for name in tables if name.startswith(f"{axis}-") and name != grid):
            curves[name], curves[f"{name}-std"] = (
                tables[name].mean(0).tolist(),
                tables[name].std(0).tolist(),
            )
    return curves


#: Errors of single targets are reported up to this number of targets.
MAX_TARGETS = 10


def pooled_errors(metrics: Metrics) -> dict[str, float]:
    """Return ``rmse-pooled``, ``mae-pooled`` and ``r2-pooled``; {} unless clients
    report sums.

    With several targets, also the errors of each, as ``rmse-pooled-1``. Clients whose
    sums no samples could produce are skipped.
    """
    parts = [part for values in metrics.values() if (part := _sums(values)) is not None]
    if not parts:
        return {}
    targets = max(len(sums) for _, sums in parts)
    count, sums = pooled([part for part in parts if len(part[1]) == targets])
    out = {f"{name}-pooled": value for name, value in errors_of(count, sums).items()}
    for place in range(targets if 1 < targets <= MAX_TARGETS else 0):
        own = errors_of(count, sums[place : place + 1])
        out |= {f"{name}-pooled-{place + 1}": value for name, value in own.items()}
    return out


def _sums(values: Mapping[str, Any]) -> tuple[int, NDArray[np.float64]] | None:
    """Return a client's number of samples and its sums (targets, 4)."""
    listed, count = values.get(ERROR_SUMS), values.get("test-samples")
    if (
        not isinstance(listed, list)
        or not listed
        or len(listed) % CHANNELS
        or not isinstance(count, int | float)
        or count < 1
    ):
        return None
    sums = np.array(listed, np.float64).reshape(-1, CHANNELS)
    sound = np.isfinite(sums).all() and (sums[:, [0, 1, 3]] >= 0).all() and count < 2**53
    return (int(count), sums) if sound else None


#: The column of clients.csv that marks them.
MARK = "new"
_NAME = re.compile(r"new-[a-z]+(?:-\d+)?")


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
