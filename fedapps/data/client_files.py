"""A folder with a file, or a folder, of each client: the name, without its ending, is
the client's, in a column ``@file``.

``train/ann.csv`` and ``test/ann.csv`` are of one client. Without folders of the splits'
names all entries of the folder are of ``train``, and of an ``ann.npz`` its arrays
``x_train`` and ``x_test`` are those of the splits.
"""

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapps.data.columns import is_class, with_names
from fedapps.data.local_files import READERS, numpy_table, separator
from fedapps.data.source import FILE, Source
from fedapps.errors import UserError, reason

#: Names of folders that hold a split, not a client.
SPLIT = re.compile("train|test|val|dev")


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
        for name in part.column_names:
            held, here = (_size(one, name) for one in (parts[0][1], part))
            if held != here:
                raise UserError(
                    f"{source.setting}: column {name!r} has {held} values a sample in "
                    f"{first.name}, {here} in {entry.name}: cut or fill them to one length"
                )
    named = [(entry.name if entry.is_dir() else entry.stem, part) for entry, part in parts]
    return _joined(named, source.setting)


_ENDINGS = (*READERS, ".npz")


def _has_samples(entry: Path) -> bool:
    if entry.name.startswith("."):
        return False
    if entry.is_dir():
        return any(one.is_file() for one in entry.rglob("*"))
    return entry.suffix.lower() in _ENDINGS


def without_samples(folder: Path, split: str) -> list[str]:
    """Return the names of a folder's clients whose folders are empty."""
    inside = folder / split if (folder / split).is_dir() else folder
    return sorted(
        entry.name
        for entry in inside.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and not _has_samples(entry)
    )


def looks_by_client(folder: Path) -> bool:
    """Return whether the folders in a folder look like one per client: two hold folders
    of the same names, the classes.
    """
    classes = [
        {one.name for one in entry.iterdir() if one.is_dir()}
        for entry in folder.iterdir()
        if entry.is_dir() and not SPLIT.search(entry.name.lower())
    ]
    return any(one and one == other for one, other in itertools.combinations(classes, 2))


def _kind(column: Any) -> str:
    """Return what a column of this type holds, in the user's words."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(column) or types.is_floating(column):
        return "numbers"
    return "text" if types.is_string(column) or types.is_large_string(column) else str(column)


def _size(part: Any, name: str) -> str:
    """Return the size of a sample in a column of fixed lists: 9 x 128."""
    import pyarrow as pa

    kind, out = part.features.arrow_schema.field(name).type, []
    while pa.types.is_fixed_size_list(kind):
        out.append(str(kind.list_size))
        kind = kind.value_type
    return " x ".join(out)


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
        first, schema = parts[0][0], tables[0].schema
        for (other, _), table in zip(parts, tables, strict=True):
            for one in schema:
                kind = table.schema.field(one.name).type
                with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
                    pa.unify_schemas(
                        [pa.schema([one]), pa.schema([(one.name, kind)])],
                        promote_options="permissive",
                    )
                    continue
                raise UserError(
                    f"{setting}: column {one.name!r} holds values of different kinds: "
                    f"{_kind(one.type)} in {first}, {_kind(kind)} in {other}: write it the same "
                    "way in all files"
                ) from error
        raise UserError(f"{setting}: files hold different columns: {reason(error, 200)}") from error
    joined = datasets.Dataset(table.combine_chunks().append_column(FILE, names))
    for name, feature in parts[0][1].features.items():
        if isinstance(feature, datasets.Image):
            joined = joined.cast_column(name, feature)
    return joined
