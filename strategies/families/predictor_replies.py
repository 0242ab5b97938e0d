"""What FedBoost and AFLBoost read from a library and from replies: predictors, and the
gradient in their weights.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Protocol

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from fedapps.strategies.base.messages import most_common, values_in

Floats = NDArray[np.float64]
#: How far the sum of a density of float32 numbers may be from 1.
ROUNDING = 1e-3


class PredictorLibrary(Protocol):
    """The server's interface to a library of q predictors.

    ``from_clients``: whether the predictors were made from the clients' data; assumed
    if the attribute is missing.
    """

    @property
    def q(self) -> int:
        """The number of predictors."""

    def take(self, ids: Any) -> Mapping[str, NDArray[Any]]:
        """Return the arrays of the predictors ``ids`` by name, stacked along the first
        axis.
        """

    def hash_of(self, predictor: int) -> str:
        """Return a hash of a predictor's content (used if clients cache predictors)."""

    def mixture(self, alpha: Any) -> Mapping[str, NDArray[Any]] | None:
        """Return the ensemble as a single predictor of the same kind if possible
        (densities), else ``None``.
        """


@dataclass(frozen=True)
class Reply:
    """One client's reply to one draw."""

    node: int
    draw: int
    gradient: Floats
    norms: Floats
    loss: float
    num_examples: float
    content: RecordDict


def alike_predictors(contents: Sequence[RecordDict]) -> list[dict[str, NDArray[Any]]]:
    """Return the clients' predictors, arrays by name; skip those whose names, shapes
    or types differ from most, and tables that are no densities: one of large numbers
    would fit all samples best.
    """
    offered = [row for content in contents if (row := _predictor(content)) and _is_density(row)]
    kinds = Counter(_spec(row) for row in offered)
    usual = kinds.most_common(1)[0][0] if kinds else ()
    rows = [row for row in offered if _spec(row) == usual]
    if len(rows) < len(contents):
        log(
            WARNING,
            "skipped %d predictors: their arrays differ from those of most clients in name, shape "
            "or type, or are no densities",
            len(contents) - len(rows),
        )
    return rows


def best_for_all(metrics: Sequence[Mapping[str, Any]], weight: str) -> dict[str, float]:
    """Return ``pooled-single``, the predictor with the smallest training loss over all
    clients, and ``pooled-single-accuracy``, its mean accuracy.

    Only clients count whose ``single-train-loss`` and ``single-accuracy`` are lists of
    the usual length; empty if there are none.
    """
    pairs = [
        (one.get("single-train-loss"), one.get("single-accuracy"), one.get(weight))
        for one in metrics
    ]
    whole = [
        (a, b, float(n))
        for a, b, n in pairs
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b) > 1 and n
    ]
    if not whole:
        return {}
    usual = most_common([len(losses) for losses, *_ in whole])
    whole = [one for one in whole if len(one[0]) == usual]
    losses, accuracies = (np.array([one[k] for one in whole], np.float64) for k in (0, 1))
    best = int(np.argmin(np.array([n for *_, n in whole]) @ losses))
    return {
        "pooled-single": float(best),
        "pooled-single-accuracy": float(accuracies[:, best].mean()),
    }


def _predictor(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return the arrays of a client's predictor by name; empty if the reply names
    none.
    """
    listed = [
        record.get("predictor-arrays")
        for record in content.values()
        if isinstance(record, ConfigRecord)
    ]
    names = [str(name) for name in listed[0]] if listed and isinstance(listed[0], list) else []
    return dict(zip(names, values_in(content), strict=False))


def _is_density(row: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether a table, if the predictor is one, is a distribution."""
    table = row.get("table", np.ones(1))
    return bool(table.size and table.min() >= 0 and table.sum(dtype=np.float64) <= 1 + ROUNDING)


def _spec(row: Mapping[str, NDArray[Any]]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, array.shape, str(array.dtype)) for name, array in row.items())
