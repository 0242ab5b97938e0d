"""Arrays, windows of sensors and columns of numbers as samples, read from Arrow to
NumPy without a Python object per value.

A sample is one cell that holds a list, a nested list or an array (9 x 128, say), the
cells of several such columns (one a sensor), or those of several columns of numbers.
All become (C, H, W), as images are: a vector (1, 1, d), a window of C channels and L
steps (C, 1, L).
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedapps.data.columns import check_targets, label_column, no_target, numbers_in
from fedapps.data.frame import Frame, is_list, is_number, some
from fedapps.data.source import FILE, Source
from fedapps.data.tables import matching
from fedapps.errors import UserError, refuse_first

BATCH = 1000


def depths_of(data: Frame) -> dict[str, int | None]:
    """Return how deep each column nests lists of numbers, 0 for plain numbers; None for
    other things.
    """
    return {
        name: None if name in data.classes else _depth(column.type)
        for name, column in data.columns.items()
    }


def _depth(kind: pa.DataType) -> int | None:
    depth = 0
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth if is_number(kind) else None


def number_columns(data: Frame, source: Source, wanted: str, others: tuple[str, ...]) -> list[str]:
    """Return the columns that make a sample: those ``wanted`` (names or patterns,
    separated by commas), else the ones found.

    Found is the only column of arrays, or if there is none all columns of numbers,
    except the ``others``. Raises ``UserError``.
    """
    depths = depths_of(data)
    chosen = matching(data.columns, wanted, source, others)
    free = [name for name in chosen if depths[name] is not None]
    arrays = [name for name in free if depths[name]]
    refuse_first(
        *(
            (
                wanted and depths[name] is None,
                f"data.features = {wanted!r}: column {name!r} holds {data.kind(name)}, not numbers",
            )
            for name in chosen
        ),
        (
            not wanted and len(arrays) > 1,
            f"data.features: {source} has several columns of arrays, name one, or those that are "
            f"channels: {some(arrays)}",
        ),
        (
            not free,
            f"{source.given}: holds no images, arrays or numbers to learn from; its columns are "
            f"{some(data.columns)}",
        ),
    )
    return free if wanted else arrays or free


def read_numbers(
    data: Frame, columns: list[str], source: Source, shape: tuple[int, ...], channels: str
) -> npt.NDArray[Any]:
    """Return the samples (N, C, H, W) in ``columns``: uint8 (pixels) if all are arrays
    of it with several axes, or with a ``shape``, else float32.

    ``shape``: reshape each sample to this first; () is as stored. ``channels``: "first"
    or "last" axis of a sample. Raises ``UserError`` for missing, ragged or non-finite
    values.
    """
    out: npt.NDArray[Any] | None = None
    for start in range(0, len(data), BATCH):
        cells = [_values(data.columns[n].slice(start, BATCH), n, source, start) for n in columns]
        stored = cells[0].shape[1:]
        refuse_first(
            *(
                (
                    cell.shape[1:] != stored,
                    f"data.features: column {name!r} of {source} holds {_size(cell.shape[1:])} a "
                    f"sample, {columns[0]!r} "
                    f"{_size(stored)}: channels must be of one shape",
                )
                for name, cell in zip(columns, cells, strict=True)
            )
        )
        sample = stored if len(columns) == 1 else (len(columns), *stored)
        if out is None:
            pixels = all(cell.dtype == np.uint8 for cell in cells) and (stored[1:] or shape)
            kind = np.uint8 if pixels else np.float32
            out = np.empty((len(data), *sample), kind)
        if out.shape[1:] != sample:
            raise UserError(
                _ragged(columns[0], source, start, out.shape[out.ndim - len(stored) :], stored)
            )
        rows = out[start : start + BATCH]
        with np.errstate(over="ignore"):  # reported below, as infinity
            for number, cell in enumerate(cells):
                (rows if len(columns) == 1 else rows[:, number])[...] = cell
    assert out is not None  # there is at least one row
    if out.dtype == np.float32 and not np.isfinite(out).all():
        finite = np.isfinite(out).reshape(len(out), -1)
        row, number = divmod(int(np.argmin(finite)), finite.shape[1])
        column = columns[number * len(columns) // finite.shape[1]]
        file = f", of {data.columns[FILE][row]}" if FILE in data.columns else ""
        tables = ", choose task=tabular with sites.columns, which fills them"
        remedy = "fill or drop them" + tables * (source.is_site and not shape)
        raise UserError(
            f"{source.given}: {len(out) - int(finite.all(1).sum())} of {len(out)} samples hold "
            f"NaN, infinity or no value (first: column {column!r}, row "
            f"{row + source.first_row}{file}): {remedy}, or name other columns (data.features)"
        )
    return _as_planes(out, columns, source, shape, channels)


def targets_of(data: Frame, source: Source, label: str) -> npt.NDArray[np.float64]:
    """Return the numbers to predict (N, targets) in a column ("": detected by name),
    one or an array a sample. Raises ``UserError``.
    """
    name = label_column(data, source, label)
    setting = f"data.label = {name!r} of {source}"
    if depths_of(data)[name]:
        values = _values(data.columns[name], name, source, 0)
    elif found := numbers_in(data, name, source):
        values = found[0]
    else:
        raise UserError(no_target(setting, data.kind(name)))
    out = values.astype(np.float64).reshape(len(values), -1)
    check_targets(out, setting, source.first_row)
    return out


def _as_planes(
    out: npt.NDArray[Any], columns: list[str], source: Source, shape: tuple[int, ...], channels: str
) -> npt.NDArray[Any]:
    stored = out.shape[1:]
    refuse_first(
        (
            shape and math.prod(shape) != math.prod(stored),
            f"data.shape = '{','.join(map(str, shape))}': has {math.prod(shape)} values, but a "
            f"sample of {source} "
            f"({some(columns)}) has {_size(stored)} = {math.prod(stored)}",
        ),
        (
            not shape and len(stored) > 3,
            f"data.shape = '': a sample of {source} is {_size(stored)}: give the at most three "
            "axes it is to have",
        ),
        (not math.prod(stored), f"{source.given}: the samples in {some(columns)} are empty"),
    )
    out = out.reshape(len(out), *(shape or stored))
    if channels == "last" and out.ndim > 2:
        out = np.moveaxis(out, -1, 1)
    if out.ndim < 4:
        out = out.reshape(len(out), out.shape[1] if out.ndim == 3 else 1, 1, -1)
    return np.ascontiguousarray(out)


def _values(column: pa.ChunkedArray, name: str, source: Source, start: int) -> npt.NDArray[Any]:
    """Return one batch of a column as (n, ...). Raises ``UserError`` for missing cells
    and ragged lists.
    """
    chunk = column.combine_chunks()
    shape, per_row = [len(chunk)], 1
    while True:
        if chunk.null_count and (shape[1:] or is_list(chunk.type)):
            row = (
                start
                + int(np.flatnonzero(pc.is_null(chunk).to_numpy(zero_copy_only=False))[0])
                // per_row
            )
            raise UserError(
                f"column {name!r}: row {row} of {source} has no value in it, or misses one in its "
                "list: fill or drop it"
            )
        if not is_list(chunk.type):
            break
        if pa.types.is_fixed_size_list(chunk.type):
            size = chunk.type.list_size
        else:
            lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
            size = int(lengths[0]) if len(lengths) else 0
            if len(odd := np.flatnonzero(lengths != size)):
                row = start + int(odd[0]) // per_row
                raise UserError(_ragged(name, source, row, (size,), (int(lengths[odd[0]]),)))
        chunk = chunk.flatten()
        shape.append(size)
        per_row *= max(size, 1)
    if chunk.null_count:  # of plain numbers: NaN, which is counted over all columns
        chunk = chunk.cast(pa.float64())
    return np.asarray(chunk.to_numpy(zero_copy_only=False)).reshape(shape)


def _ragged(
    name: str, source: Source, row: int, usual: tuple[int, ...], odd: tuple[int, ...]
) -> str:
    return (
        f"column {name!r}: the lists of {source} differ in length ({_size(usual)}, but "
        f"{_size(odd)} in row {row}): cut or fill "
        "them to one length"
    )


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"
