"""Data in memory: DataFrames and arrays, written to the cache folder as Arrow files
that the reader of local data reads.

The folder is named after the content, so the same data have one path in all runs.
Nothing is pickled.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.data import cache
from fedapps.data.frame import check_names
from fedapps.errors import UserError, reason, refuse_first

#: Names of arrays, and the setting that each of them answers.
ARRAYS = {"x": "", "y": "label", "client": "natural_id", "part": "part"}


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas DataFrame, without importing pandas."""
    return type(value).__name__ == "DataFrame" and type(value).__module__.startswith("pandas")


def is_array(value: Any) -> bool:
    """Return whether a value is an array: of NumPy, a tensor, or a Series."""
    return hasattr(value, "__array__") and not (is_frame(value) or isinstance(value, np.generic))


def data_table(data: Any) -> dict[str, Any]:
    """Return the settings of table ``data`` for what the user gave: a table of settings
    with or without data in it, a DataFrame, arrays, or a path. Raises ``UserError``.
    """
    if isinstance(data, str | Path) or is_frame(data):
        data = {"source": data}
    pair = isinstance(data, tuple)
    refuse_first(
        (pair and len(data) != 2, "data: a tuple is (x, y), two arrays"),
        (
            not pair and not isinstance(data, Mapping),
            f"data: is of type {type(data).__name__}: give a dictionary of settings, a path, a "
            "DataFrame, or arrays as (x, y)",
        ),
    )
    table = dict(zip("xy", data, strict=True) if pair else data)
    named = {"x", "y", "client"} if {"x", "y"} & table.keys() else set()
    if arrays := {name: one for name, one in table.items() if name in named or is_array(one)}:
        table = _with_arrays(table, arrays)
    elif is_frame(source := table.get("source")):
        table["source"] = _written(_of_frame(source), "DataFrame")
    return table


def is_written(source: object) -> bool:
    """Return whether a source is data that were in memory."""
    return isinstance(source, str) and Path(source).parent == _folder()


def _with_arrays(table: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, with one row per sample of the arrays written to a file.
    Raises ``UserError``.
    """
    from fedapps.data.local_files import arrow_table

    rest = {name: value for name, value in table.items() if name not in arrays}
    answers = {name: setting for name, setting in ARRAYS.items() if name in arrays}
    answered = {"source", "features", "image", "label", *answers.values()}
    refuse_first(
        *(
            (
                name not in ARRAYS,
                f"data: {name!r} is an array: the arrays are x, y, client and part",
            )
            for name in arrays
        ),
        *(
            (name not in arrays, f"data: {', '.join(arrays)} is given without {name}")
            for name in ("x", "y")
        ),
        *(
            (
                name in answered,
                f"data: {name} is given beside arrays, which answer it: leave it out",
            )
            for name in rest
        ),
        *(
            (not is_array(one), f"data: {name} is of type {type(one).__name__}: give an array")
            for name, one in arrays.items()
        ),
    )
    named = {setting: name for name, setting in answers.items() if setting}
    return {**rest, "source": _written(arrow_table(arrays, "data:"), "arrays"), **named}


def _of_frame(frame: Any) -> Any:
    """Return a DataFrame as an Arrow table. Raises ``UserError``."""
    import pyarrow as pa

    if named := [name for name in frame.index.names if name is not None]:
        raise UserError(
            f"data: its index is named {named[0]!r}: make it a column with reset_index(), or "
            "leave it out with reset_index(drop=True)"
        )
    names = [str(name) for name in frame.columns]
    try:
        check_names(names)
    except ValueError as error:
        raise UserError(f"data: {error}") from None
    columns = {}
    for name, (_, column) in zip(names, frame.items(), strict=True):
        try:
            columns[name] = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"data: column {name!r}: {reason(error)}") from None
    return pa.table(columns)


def _folder() -> Path:
    return (cache.folder() / "in-memory").absolute()


def _written(table: Any, kind: str) -> str:
    """Write an Arrow table made of a ``kind``, unless it is there already; return its
    path.
    """
    import pyarrow as pa

    try:
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_folder(), prefix=".new-") as name:
            fresh = Path(name) / "data"
            with pa.OSFile(str(fresh), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
                out.write_table(table)
            with fresh.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            place = fresh.replace(_folder() / f"{kind}-{digest}.arrow")
    except OSError as error:
        raise UserError(f"data: cannot be written to {_folder()}: {reason(error)}") from None
    return str(place)
