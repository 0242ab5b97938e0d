"""A folder with a file, or a folder, of each client: the name, without its ending, is
the client's, in a column ``@file``.

``train/ann.csv`` and ``test/ann.csv`` are of one client. Without folders of the splits'
names all entries of the folder are of ``train``, and of an ``ann.npz`` its arrays
``x_train`` and ``x_test`` are those of the splits.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapps.data.columns import is_class, with_names
from fedapps.data.local_files import READERS, numpy_table, separator
from fedapps.data.source import Source
from fedapps.errors import UserError, reason

#: Stands for a column: names a sample's file.
FILE = "@file"


def one_by_one(folder: Path, source: Source, read: Callable[[Path, Source], Any]) -> Any:
    """Return the samples of all clients as a `datasets.Dataset` with the column
    ``@file``. Raises ``UserError``.

    ``read(path, source)`` reads what is no single csv, parquet or npz file.
    """
    inside = folder / source.split
    if inside.is_dir():
        folder, source = inside, replace(source, split="train")
    entries = sorted(entry for entry in folder.iterdir() if _has_samples(entry))
    if not entries:
        raise UserError(
            f"{source.client} = {FILE!r}: {folder} holds no file of a client: {', '.join(_ENDINGS)}"
        )
    parts = []
    for entry in entries:
        try:
            part = _plain(_read(entry, replace(source, name=str(entry)), read))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{source.setting}: {entry} cannot be read: {reason(error, 200)}"
            ) from error
        parts.append((entry, part))
    first, columns = parts[0][0], set(parts[0][1].column_names)
    for entry, part in parts:
        if differing := columns ^ set(part.column_names):
            raise UserError(
                f"{source.setting}: column {min(differing)!r} is in only one of {first.name} and "
                f"{entry.name}: give all files the same"
            )
    named = [(entry.name if entry.is_dir() else entry.stem, part) for entry, part in parts]
    return _joined(named, source.setting)


_ENDINGS = (*READERS, ".npz")


def _has_samples(entry: Path) -> bool:
    return not entry.name.startswith(".") and (entry.is_dir() or entry.suffix.lower() in _ENDINGS)


def _read(entry: Path, source: Source, read: Callable[[Path, Source], Any]) -> Any:
    import datasets

    kind = entry.suffix.lower()
    if entry.is_dir() or kind in (".json", ".jsonl", ".arrow"):
        return read(entry, source)
    if kind == ".npz":
        return numpy_table(entry, source)
    if source.split != "train":
        raise UserError(
            f"{source.given_split}: no folder {source.split} lies beside {entry.name}, with its "
            "samples of that split"
        )
    if kind == ".parquet":
        import pyarrow.parquet as pq

        return datasets.Dataset(pq.read_table(entry))
    import pandas as pd

    return datasets.Dataset.from_pandas(
        pd.read_csv(entry, sep=separator(entry)), preserve_index=False
    )


def _plain(part: Any) -> Any:
    """Return the samples with classes by their names: their numbers follow from the
    classes that one client has.
    """
    for name, feature in part.features.items():
        if is_class(feature):
            names = with_names(feature, part[name][:])
            part = part.remove_columns([name]).add_column(name, names)
    return part


def _joined(parts: list[tuple[str, Any]], setting: str) -> Any:
    """Return the samples of all clients: whole numbers of one file and fractions of
    another are fractions.
    """
    import datasets
    import pyarrow as pa

    names = pa.concat_arrays([pa.array([name] * len(part), pa.string()) for name, part in parts])
    tables = [part.with_format("arrow")[:] for _, part in parts]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(
            f"{setting}: a column holds values of different kinds in different files: "
            f"{reason(error, 200)}"
        ) from error
    joined = datasets.Dataset(table.combine_chunks().append_column(FILE, names))
    for name, feature in parts[0][1].features.items():
        if isinstance(feature, datasets.Image):
            joined = joined.cast_column(name, feature)
    return joined
