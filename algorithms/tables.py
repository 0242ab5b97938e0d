"""Distributions over a vocabulary that are zero almost everywhere, as lists of their non-zero entries.

A speaking role uses one word in a hundred of the whole vocabulary: packed, its table is forty times smaller in a message, and the
few columns that a client's data touch are read without ever making the table. ``pack`` / ``unpack`` are the wire format between a
server that holds tables and clients that score them; tables that are dense travel as they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
FIELDS = ("values", "outcomes", "starts", "size")


def pack(tables: Floats) -> dict[str, NDArray[Any]]:
    """Return tables (h, V) as ``values`` and ``outcomes`` (nnz,) row by row, ``starts`` (h + 1,) of the rows, and ``size`` (1,) = V."""
    rows, outcomes = np.nonzero(tables)
    counts = np.bincount(rows, minlength=len(tables))
    return {
        "values": tables[rows, outcomes],
        "outcomes": outcomes.astype(np.int32),
        "starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "size": np.array([tables.shape[1]], np.int64),
    }


def is_packed(predictors: Mapping[str, NDArray[Any]]) -> bool:
    """Tell packed tables from dense ones."""
    return set(predictors) == set(FIELDS)


def columns(packed: Mapping[str, NDArray[Any]], wanted: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the columns ``wanted`` (m,), distinct, of packed tables, shape (h, m). ``ValueError`` for entries that are no tables."""
    values, outcomes, starts, size = _checked(packed)
    place = np.full(size, -1, np.int64)
    place[wanted] = np.arange(len(wanted))
    at = place[outcomes]
    kept = at >= 0
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    out = np.zeros((len(starts) - 1, len(wanted)))
    out[rows[kept], at[kept]] = values[kept]
    return out


def unpack(packed: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the tables (h, V) of :func:`pack`, in the type of their values. ``ValueError`` as :func:`columns`."""
    values, outcomes, starts, size = _checked(packed)
    out = np.zeros((len(starts) - 1, size), values.dtype)
    out[np.repeat(np.arange(len(starts) - 1), np.diff(starts)), outcomes] = values
    return out


def _checked(packed: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
    """Return the four arrays, or raise: what comes in a message may be anything."""
    values, outcomes, starts, (size,) = (packed[name] for name in FIELDS)
    whole = values.ndim == outcomes.ndim == starts.ndim == 1 and len(starts) > 1 and starts[0] == 0
    if not whole or (np.diff(starts) < 0).any() or not len(values) == len(outcomes) == starts[-1]:
        raise ValueError("packed tables: values, outcomes and starts do not fit together")
    if len(outcomes) and not 0 <= outcomes.min() <= outcomes.max() < size:
        raise ValueError(f"packed tables: outcomes {outcomes.min()}..{outcomes.max()}, but the vocabulary has {size} entries")
    return values, outcomes, starts, int(size)
