"""Client updates as vectors, and server steps along them; shared by FedAdam, q-FedAvg,
FedMGDA+ and others.

Counters, the running statistics of normalisation layers and masks (numbers beyond
``LIMIT``) are not learned: a step along their differences is meaningless and may make a
variance negative. They are averaged instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import LIMIT, STATISTICS
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.messages import to_record

Named = dict[str, NDArray[Any]]


def learned(record: ArrayRecord) -> Named:
    """Return the learned arrays of a model by name."""
    arrays = {name: read(array) for name, array in record.items() if not name.endswith(STATISTICS)}
    return {
        name: values
        for name, values in arrays.items()
        if values.dtype.kind == "f" and (np.abs(values) <= LIMIT).all()
    }


def each_update(sent: ArrayRecord, records: Iterable[ArrayRecord]) -> Iterator[NDArray[np.float64]]:
    """Yield the updates ``w_k - w`` (d,) of the learned arrays."""
    start = learned(sent)
    before = flat(start)
    for record in records:
        yield flat({name: read(record[name]) for name in start}) - before


def updates(sent: ArrayRecord, records: Iterable[ArrayRecord]) -> NDArray[np.float64]:
    """Return the updates as rows (m, d)."""
    return np.stack([*each_update(sent, records)])


def flat(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the arrays concatenated to one vector (d,)."""
    return np.concatenate([values.reshape(-1).astype(np.float64) for values in arrays.values()])


def moved(sent: ArrayRecord, step: NDArray[np.float64], average: ArrayRecord) -> ArrayRecord:
    """Return the model whose learned arrays are those of ``sent`` plus ``step`` (d,),
    the others as in ``average``.
    """
    new, start = {name: read(array) for name, array in average.items()}, 0
    for name, values in learned(sent).items():
        part = step[start : start + values.size].reshape(values.shape)
        new[name] = np.asarray(values + part, dtype=values.dtype)
        start += values.size
    return to_record(list(new), list(new.values()))
