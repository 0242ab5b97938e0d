"""Sparse wire format of probability tables over a vocabulary: their non-zero entries,
row by row.

A speaking role uses one word in a hundred of the vocabulary: packed, its table is forty
times smaller in a message, and the few columns that a client's data need are read
without building the dense table. ``pack`` / ``unpack`` are the wire format between the
server, which holds the tables, and the clients, which score them; dense tables are sent
as they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Predictors = Mapping[str, NDArray[Any]]
FIELDS = ("values", "outcomes", "starts", "size")
#: Largest dense size of received tables: a small message must not be able to exhaust a
#: machine's memory.
MAX_ENTRIES = 2**28


def pack(tables: Floats) -> dict[str, NDArray[Any]]:
    """Return tables (h, V) as ``values`` and ``outcomes`` (nnz,) row by row, ``starts``
    (h + 1,) of the rows, and ``size`` (1,) = V.
    """
    rows, outcomes = np.nonzero(tables)
    counts = np.bincount(rows, minlength=len(tables))
    return {
        "values": tables[rows, outcomes],
        "outcomes": outcomes.astype(np.int32),
        "starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "size": np.array([tables.shape[1]], np.int64),
    }


def compact(predictors: Predictors) -> Predictors:
    """Return predictors as they should be sent: tables ``{"table": (h, V)}`` packed if
    that is smaller, anything else unchanged.
    """
    table = predictors.get("table")
    if table is None or len(predictors) > 1 or table.ndim != 2:
        return predictors
    entry = table.itemsize + np.dtype(np.int32).itemsize
    small = (
        np.count_nonzero(table) * entry + (len(table) + 2) * np.dtype(np.int64).itemsize
        < table.nbytes
    )
    return pack(table) if small else predictors


def is_packed(predictors: Predictors) -> bool:
    """Return whether the predictors are packed tables."""
    return set(predictors) == set(FIELDS)


def columns(packed: Predictors, wanted: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the distinct columns ``wanted`` (m,) of packed tables as an array (h, m).
    Raises ``ValueError`` for malformed tables.
    """
    values, outcomes, starts, size = _checked(packed)
    place = np.full(size, -1, np.int64)
    place[wanted] = np.arange(len(wanted))
    at = place[outcomes]
    kept = np.flatnonzero(at >= 0)
    # an entry's row is the last one that starts at or before it
    rows = np.searchsorted(starts, kept, side="right") - 1
    out = np.zeros((len(starts) - 1, len(wanted)))
    out[rows, at[kept]] = values[kept]
    return out


def unpack(packed: Predictors) -> NDArray[Any]:
    """Undo :func:`pack`: return the tables (h, V), in the dtype of their values. Raises
    ``ValueError`` as :func:`columns` does.
    """
    values, outcomes, starts, size = _checked(packed)
    if (len(starts) - 1) * size > MAX_ENTRIES:
        raise ValueError(
            f"packed tables: {len(starts) - 1} over {size} entries are more than {MAX_ENTRIES} "
            "numbers"
        )
    out = np.zeros((len(starts) - 1, size), values.dtype)
    out[np.repeat(np.arange(len(starts) - 1), np.diff(starts)), outcomes] = values
    return out


def _checked(packed: Predictors) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
    """Return values, outcomes, starts and size of received tables; raises
    ``ValueError`` for malformed ones.
    """
    values, outcomes, starts, sizes = (packed[name] for name in FIELDS)
    kinds = values.dtype.kind + outcomes.dtype.kind + starts.dtype.kind + sizes.dtype.kind
    if kinds != "fiii" or sizes.shape != (1,) or not 0 < sizes[0] <= MAX_ENTRIES:
        raise ValueError(
            f"packed tables: arrays of kinds {kinds!r} and a vocabulary of {sizes.ravel()[:1]}: "
            f"1..{MAX_ENTRIES} entries"
        )
    size = int(sizes[0])
    whole = values.ndim == outcomes.ndim == starts.ndim == 1 and len(starts) > 1 and starts[0] == 0
    if not whole or (np.diff(starts) < 0).any() or not len(values) == len(outcomes) == starts[-1]:
        raise ValueError("packed tables: values, outcomes and starts do not fit together")
    if len(outcomes) and not 0 <= outcomes.min() <= outcomes.max() < size:
        raise ValueError(
            f"packed tables: outcomes {outcomes.min()}..{outcomes.max()}, but the vocabulary has "
            f"{size} entries"
        )
    return values, outcomes, starts, size
