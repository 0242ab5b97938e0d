"""Weighted averages of the arrays and of the metrics in replies, and arrays as Flower's
records.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import weighted_average
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.messages import arrays_of, metrics_of

T = TypeVar("T")


def average_arrays(contents: Sequence[RecordDict], weights: Sequence[float]) -> ArrayRecord:
    """Return the weighted average of the one ArrayRecord in each content, names
    kept.
    """
    records = [arrays_of(content)[0] for content in contents]
    names = list(records[0])
    if len(records) == 1 or hold_mean(records):
        return records[0].copy()
    models = [[read(record[name]) for name in names] for record in records]
    return to_record(names, weighted_average(models, weights))


def hold_mean(records: Sequence[ArrayRecord]) -> bool:
    """Return whether several records hold the same arrays: those of nodes that sum, or
    of a secure sum, hold the mean already.
    """
    return len(records) > 1 and all(
        record[name] is array for record in records[1:] for name, array in records[0].items()
    )


def average_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the weighted mean of every metric over the clients that report it; of
    lists those of the most common length count.

    Flower's own function ends the run when one client reports a metric that another
    does not.
    """
    listed: dict[str, list[tuple[float, NDArray[np.float64]]]] = {}
    for values in map(metrics_of, contents):
        weight = float(values.pop(weighted_by_key))
        for name, value in values.items():
            listed.setdefault(name, []).append((weight, np.asarray(value, dtype=np.float64)))
    return MetricRecord({name: _usual_mean(pairs) for name, pairs in listed.items()})


def _usual_mean(pairs: Sequence[tuple[float, NDArray[np.float64]]]) -> Any:
    """Return the weighted mean of the values whose shape is the most common one."""
    usual = most_common([value.shape for _, value in pairs])
    kept = [(weight, value) for weight, value in pairs if value.shape == usual]
    total = sum(weight for weight, _ in kept)
    return np.asarray(sum(weight * value for weight, value in kept) / total).tolist()


def most_common(items: Sequence[T]) -> T:
    """Return the most common item, of several the first."""
    return Counter(items).most_common(1)[0][0]


def to_record(names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
    """Return named arrays as Flower's ArrayRecord."""
    return ArrayRecord(
        {name: Array(*fields(array)) for name, array in zip(names, arrays, strict=True)}
    )
