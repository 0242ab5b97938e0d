"""Weighted averages of the arrays and of the metrics in replies, and arrays as Flower's records."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from algorithms.common.averaging import weighted_average
from algorithms.common.wire import fields, read
from strategies.base.messages import arrays_of, metrics_of


def average_arrays(contents: Sequence[RecordDict], weights: Sequence[float]) -> ArrayRecord:
    """Return the weighted average of the one ArrayRecord in each content, names kept."""
    records = [arrays_of(content)[0] for content in contents]
    models = [[read(array) for array in record.values()] for record in records]
    return to_record(list(records[0]), weighted_average(models, weights))


def average_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the weighted mean of every metric over the clients that report it; lists count where their lengths agree.

    Flower's own function ends the run when one client reports a metric that another does not.
    """
    sums: dict[str, Any] = {}
    totals: dict[str, float] = {}
    for values in map(metrics_of, contents):
        weight = float(values.pop(weighted_by_key))
        for name, value in values.items():
            term = weight * np.asarray(value, dtype=np.float64)
            if name not in sums or np.shape(sums[name]) == term.shape:
                sums[name] = sums.get(name, 0.0) + term
                totals[name] = totals.get(name, 0.0) + weight
    return MetricRecord({name: (total / totals[name]).tolist() for name, total in sums.items()})


def to_record(names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
    """Return named arrays as Flower's ArrayRecord."""
    return ArrayRecord({name: Array(*fields(array)) for name, array in zip(names, arrays, strict=True)})
