"""Local files that `datasets.load_dataset` does not read by itself: NumPy's npz and
npy, and single files.

Of the arrays of a folder or file those belong to a split that are in a file or folder
of its name (``train.npz``, ``train/x.npy``) or whose own names end in it (``x_train``),
which is cut off. All have the samples as their first axis. Nothing is unpickled.
"""

import itertools
import re
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.data.source import FILE, Source
from fedapps.errors import UserError

READERS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "arrow",
}


def reader_of(path: Path, source: Source) -> str:
    """Return the name of the `datasets` builder for a single file. Raises
    ``UserError``.
    """
    if path.suffix not in READERS:
        raise UserError(
            f"{source.setting} = '{path}': a file must be one of "
            f"{', '.join([*READERS, '.npz'])}, else name a folder"
        )
    return READERS[path.suffix]


def separator(path: Path) -> str:
    """Return what separates the columns of a csv: the sign that is most often in its
    first line, outside of quotation marks.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = re.sub(r'"[^"]*"', "", file.readline())
    return max(",;\t|", key=names.count)


def numpy_table(path: Path, source: Source) -> Any:
    """Return a split of NumPy files as a `datasets.Dataset`; None if there are no such
    files. Raises ``UserError``.
    """
    if path.is_file() and path.suffix != ".npz":
        return None
    files = [path] if path.is_file() else sorted({*path.rglob("*.npz"), *path.rglob("*.npy")})
    if not files:
        return None
    import datasets
    import pyarrow as pa

    arrays, tables = _arrays(files, source), []
    for part in source.split.split("+"):
        columns = _columns(arrays, path, part.strip(), source)
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(
                f"{source.setting} = '{path}': its arrays differ in length ({shown}): one row a "
                "sample is needed in each"
            )
        tables.append(pa.table({name: arrow_array(array) for name, array in columns.items()}))
    return datasets.Dataset(pa.concat_tables(tables))


def arrow_array(array: npt.NDArray[Any]) -> Any:
    """Return an array (N, ...) as Arrow, lists of fixed size for all axes but the
    first; numbers are not copied.
    """
    import pyarrow as pa

    out = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in array.shape[:0:-1]:
        out = pa.FixedSizeListArray.from_arrays(out, length)
    return out


def _arrays(files: list[Path], source: Source) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """Return the arrays by a name that includes the file's: (path without its ending,
    array). Raises ``UserError``.
    """
    out: dict[str, tuple[str, npt.NDArray[Any]]] = {}
    for file in files:
        try:
            if not file.is_file():  # reading a pipe would wait for a writer
                raise ValueError("it is not a regular file")
            opened: Any = np.load(
                file, allow_pickle=False, mmap_mode="r" if file.suffix == ".npy" else None
            )
            members = (
                {file.stem: opened}
                if file.suffix == ".npy"
                else {name: opened[name] for name in opened.files}
            )
        except (
            OSError,
            ValueError,
            EOFError,
            MemoryError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise UserError(
                f"{source.setting} = '{file}': cannot be read, it must hold plain arrays ({error})"
            ) from error
        for name, array in members.items():
            place = file.parent.name if file.suffix == ".npy" else file.stem
            if array.ndim:
                out[f"{place}/{name}"] = (name, array)
    return out


def _columns(
    arrays: dict[str, tuple[str, npt.NDArray[Any]]], path: Path, split: str, source: Source
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one split by name."""
    own: dict[str, npt.NDArray[Any]] = {}
    for (key, (name, array)), ending in itertools.product(
        arrays.items(), (f"_{split}", f"-{split}")
    ):
        if key.split("/")[0] == split:
            own[name] = array
        elif name.lower().endswith(ending.lower()):
            own[name[: -len(ending)]] = array
    if own:
        return own
    if split == "train" and len({key.split("/")[0] for key in arrays}) == 1:
        return dict(arrays.values())
    places = {key.split("/")[0] for key in arrays}
    hint = f" (a file per client: {source.client}={FILE})" * (len(places) > 1)
    raise UserError(
        f"{replace(source, split=split).given_split}: no array of '{path}' is of this split: "
        f"name files {split}.npz or arrays x_{split}, or one of {', '.join(arrays)}{hint}"
    )
