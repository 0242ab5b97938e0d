"""Local files as samples: which files of a folder are read, and by which reader.

All files of the kind that a folder has most of are read; each other one is named as
left out. Files are of splits if all of them, or ``train`` and others, lie in folders
or (tables) have names of splits, at one depth. Of the arrays of NumPy's files those
belong to a split that are in a file or folder of its name (``train.npz``,
``train/x.npy``) or whose own names end in it (``x_train``), which is cut off. Nothing
is unpickled.
"""

import csv
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedapps.data.csv_files import NO_UTF8, read_csv
from fedapps.data.frame import Frame, check_names, joined, left_out
from fedapps.data.source import FILE, PART_NAMES, TRAIN, Source
from fedapps.errors import UserError, reason, refuse_first

ARRAYS, MEDIA = "arrays", ("image", "audio")
#: The kinds of files by their endings; of those with as many files the first is read.
KINDS = {
    ".npz": ARRAYS,
    ".npy": ARRAYS,
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "arrow",
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm", ".ppm"), "image"
    ),
    ".wav": "audio",
    ".txt": "text",
}
COMPRESSED = (".gz", ".bz2", ".zst")
#: Values of json are nested at most so deeply.
DEEPEST = 32


def kind_of(path: Path) -> str:
    """Return the kind of a file; "" if there is no reader for it, or it is no file but
    a pipe, say, or a link to nothing.
    """
    endings = [ending.lower() for ending in path.suffixes if path.is_file()]
    if endings and endings[-1] in COMPRESSED:
        kind = KINDS.get(endings[-2], "") if len(endings) > 1 else ""
        return kind if kind in ("csv", "json") else ""
    return KINDS.get(endings[-1], "") if endings else ""


def client_of(path: Path) -> str:
    """Return the name of the client that a file or folder is of."""
    packed = path.suffix.lower() in COMPRESSED
    return path.name if path.is_dir() else Path(path.stem).stem if packed else path.stem


def read_local(path: Path, source: Source) -> Frame:
    """Return the samples of a split in a file, or in the files of a folder. Raises
    ``UserError``.
    """
    said: list[str] = []
    if path.is_file():
        if (kind := kind_of(path)) in ("", *MEDIA, "text"):
            tables = [ending for ending, kind in KINDS.items() if kind not in (*MEDIA, "text")]
            raise UserError(
                f"{source.setting} = '{path}': a file must be one of {', '.join(tables)}: save a "
                "table as csv, or name a folder"
            )
        files = [path]
        if kind != ARRAYS:
            check_one_table(source)
    else:
        files, said = _of_folder(path, source)
        kind = kind_of(files[0])
    if kind == ARRAYS:
        frame = _of_numpy(files, path, source)
    elif kind in MEDIA:
        frame = _media(files, path, kind)
    else:
        parts = [(file.name, _read(READERS[kind], file, source.setting)) for file in files]
        frame = joined(parts, source.setting)
    read = f"{path.name}: {len(frame)} rows" + f" in {len(files)} files" * path.is_dir()
    return replace(frame, account=(read, *frame.account, *said))


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder, in the order of their paths as text."""
    below = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    seen = [path for path in below if not any(part.startswith(".") for part in path.parts)]
    return [folder / path for path in sorted(seen, key=Path.as_posix)]


def check_one_table(source: Source) -> None:
    """Raise ``UserError`` for another split or a configuration of a single table: it
    would be read once more, as test samples that are also trained on.
    """
    refuse_first(
        *(
            (
                value,
                f"{source.table}.{key} = {value!r}: {source} is a single table: name the column "
                "with the part of each sample (data.part), or a folder with one file per split",
            )
            for key, value in (
                ("test", source.test),
                ("validation-split", source.validation_split),
                ("config", source.config),
            )
        )
    )


def _of_folder(folder: Path, source: Source) -> tuple[list[Path], list[str]]:
    """Return the files of a folder that are read, and what is said of the others."""
    files = files_in(folder)
    found = Counter(filter(None, map(kind_of, files)))
    if not found:
        raise UserError(
            f"{source.given}: cannot be read: {folder} holds no file of {', '.join(KINDS)}"
        )
    order = list(dict.fromkeys(KINDS.values()))
    kind = max(found, key=lambda one: (one != "text", found[one], -order.index(one)))
    mine = [file for file in files if kind_of(file) == kind]
    rest = [file for file in files if kind_of(file) != kind]
    said = left_out((str(file.relative_to(folder)) for file in rest), f"no {kind} files")
    if kind == ARRAYS:  # their names say which are of the split
        return mine, said
    splits = _splits(mine, folder, kind in MEDIA)
    if splits is None:
        check_one_table(source)
        if PART_NAMES.get(source.split) != TRAIN:
            raise UserError(
                f"{source.given_split}: {source} has no files of splits: leave it 'train', for all"
            )
        return mine, said
    parts = [word.strip() for word in source.split.split("+")]
    wanted = [PART_NAMES.get(part, part) for part in parts]
    more = [PART_NAMES.get(name, name) for name in (source.test, source.validation_split)]
    known = sorted(str(NAMES.get(split, split)) for split in {*splits} - {None})
    refuse_first(
        *(
            (part not in splits, f"{source.given_split}: {source} has {', '.join(known)}")
            for part in wanted
        )
    )
    of_split = [*zip(mine, splits, strict=True)]
    chosen = [file for part in wanted for file, split in of_split if split == part]
    others = (file for file, split in of_split if split not in (*wanted, *more))
    shown = (str(file.relative_to(folder)) for file in others)
    return chosen, said + left_out(shown, "not of this split")


#: What the parts are called in messages.
NAMES: dict[Any, str] = {part: name for name, part in reversed(PART_NAMES.items())}
_SHARD = re.compile(r"(.+)-\d+-of-\d+")


def _splits(files: Sequence[Path], folder: Path, by_folder: bool) -> list[Any] | None:
    """Return the split of each file, None where it has none; None if they are not of
    splits. ``by_folder``: names of files are not looked at.
    """
    paths = [
        (*file.relative_to(folder).parent.parts, *(() if by_folder else (client_of(file),)))
        for file in files
    ]
    for depth in range(max(map(len, paths))):
        names = [path[depth].lower() if depth < len(path) else "" for path in paths]
        shards = [_SHARD.fullmatch(name) for name in names]
        exact = [
            PART_NAMES.get(s[1], s[1]) if s else PART_NAMES.get(name)
            for name, s in zip(names, shards, strict=True)
        ]
        words = [{PART_NAMES.get(w) for w in re.split("[^a-z]+", name)} - {None} for name in names]
        loose = [next(iter(word)) if len(word) == 1 else None for word in words]
        found = set(exact) - {None}
        of_all = None not in exact and not found.isdisjoint(PART_NAMES.values())
        if of_all or (TRAIN in found and len(found) > 1):
            return exact
        if None not in loose and len(set(loose)) > 1:
            return loose
    return None


def _read(reader: Callable[[Path], Frame], file: Path, setting: str) -> Frame:
    try:
        frame = reader(file)
    except UNREADABLE as error:
        why = NO_UTF8 if isinstance(error, UnicodeDecodeError) else reason(error)
        raise UserError(f"{setting}: {file} cannot be read: {why}") from error
    return replace(frame, account=tuple(f"{file.name}: {line}" for line in frame.account))


def _parquet(file: Path) -> Frame:
    from pyarrow import parquet  # imported here: it takes 40 MB, and other files do without

    opened = parquet.ParquetFile(file)
    schema = opened.schema_arrow
    check_names(schema.names)
    # by column: memory then never holds the whole file beside its values
    columns = [opened.read([name]).column(name) for name in schema.names]
    return Frame.of(pa.Table.from_arrays(columns, schema=schema))


def _arrow(file: Path) -> Frame:
    """Read either of the two formats of Arrow files."""
    with pa.memory_map(str(file)) as mapped:
        opener = pa.ipc.open_file if mapped.read(6) == b"ARROW1" else pa.ipc.open_stream
        mapped.seek(0)
        return Frame.of(opener(mapped).read_all())


def _lines(file: Path) -> Frame:
    lines = file.read_text(encoding="utf-8-sig").splitlines()
    return Frame.of(pa.table({"text": pa.array(lines, pa.string())}))


def _json(file: Path) -> Frame:
    """Read JSON: a list of rows, one row per line, or a list per column name, also with
    a number of each row.
    """
    with pa.input_stream(str(file)) as stream:
        text = stream.read().decode("utf-8-sig")
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        rows = json.loads("[" + ",\n".join(filter(str.strip, text.splitlines())) + "]")
    if isinstance(rows, dict):
        held = set(map(type, rows.values()))
        columns = rows if held == {list} else {name: [cell] for name, cell in rows.items()}
        if held == {dict} and len(set(map(tuple, rows.values()))) == 1:  # as pandas writes it
            columns = {name: [*cells.values()] for name, cells in rows.items()}
    elif isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
    else:
        raise ValueError("it holds no rows of named values")
    arrays = {}
    for name, cells in columns.items():
        if _depth(cells) > DEEPEST:
            raise ValueError(f"column {name!r} is nested more than {DEEPEST} times")
        try:
            arrays[name] = pa.array(cells, from_pandas=True)
        except OverflowError:
            raise ValueError(f"column {name!r} holds whole numbers of over 64 bits") from None
        except pa.ArrowException:
            kinds = list(map(type, cells))
            odd = next((k for k, kind in enumerate(kinds) if kind not in (kinds[0], type(None))), 0)
            raise ValueError(
                f"column {name!r} holds values of different kinds (first: row {odd}): write it the "
                "same way in all rows"
            ) from None
    return Frame.of(pa.table(arrays))


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inside), default=0) if isinstance(value, list | dict) else 0


def _media(files: list[Path], folder: Path, kind: str) -> Frame:
    """Return pictures or sounds, labelled by their folders unless they all lie in the
    folder of all or of a split.
    """
    stored = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = pa.array([{"bytes": None, "path": str(file)} for file in files], stored)
    columns, places = {kind: pa.chunked_array([cells])}, {file.parent for file in files}
    (first, *more) = places
    if more or not (first == folder or first.name.lower() in PART_NAMES):
        names = [None if file.parent == folder else file.parent.name for file in files]
        columns["label"] = pa.chunked_array([pa.array(names, pa.string())])
    depths = {len(place.parts) for place in places if place != folder}
    said = ("labels are the innermost folders, of several depths",) * (len(depths) > 1)
    return Frame(columns, images=frozenset({kind} - {"audio"}), account=said)


#: Readers of tables in files of their own.
READERS: dict[str, Callable[[Path], Frame]] = {
    "csv": read_csv,
    "parquet": _parquet,
    "json": _json,
    "arrow": _arrow,
    "text": _lines,
}
#: What readers raise for a file that they cannot read.
UNREADABLE = (
    *(OSError, ValueError, EOFError, MemoryError, RecursionError, NotImplementedError),
    *(TypeError, KeyError, csv.Error, zipfile.BadZipFile, zlib.error),
)


# NumPy's files


def arrow_table(arrays: Mapping[str, Any], setting: str) -> pa.Table:
    """Return arrays as columns, one row per sample. ``UserError`` begins with
    ``setting``.
    """
    columns: dict[str, pa.Array] = {}
    for name, value in arrays.items():
        try:
            columns[name] = _arrow_array(value)
        except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{setting} array {name!r} {reason(error)}") from None
    if len(set(map(len, columns.values()))) > 1:
        shown = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise UserError(
            f"{setting} arrays differ in length ({shown}): give one row per sample in each"
        )
    return pa.table(columns)


def _arrow_array(value: Any) -> pa.Array:
    """Return an array (N, ...) as Arrow, lists of fixed size for all axes but the
    first; numbers are not copied. Raises ``TypeError`` for what holds no plain values.
    """
    array = np.asarray(value)
    kind = array.dtype
    for odd, what in (
        (isinstance(value, np.ma.MaskedArray), "is a masked array: fill or drop what is masked"),
        (not array.ndim, "is a single value: give one row per sample"),
        (kind.kind in "cVO", f"holds {kind}: give plain numbers or text"),
    ):
        if odd:
            raise TypeError(what)
    if kind.kind == "S":
        array = np.char.decode(array, "utf-8")
    elif kind.kind == "f" and kind.itemsize not in (4, 8):
        array = array.astype(np.float32 if kind.itemsize == 2 else np.float64)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    out = pa.array(array.reshape(-1))
    for length in array.shape[:0:-1]:
        out = pa.FixedSizeListArray.from_arrays(out, length)
    return out


def _of_numpy(files: list[Path], path: Path, source: Source) -> Frame:
    """Return the arrays of NumPy's files as columns; single values are left out. Raises
    ``UserError``.
    """
    arrays: list[tuple[str, str, npt.NDArray[Any]]] = []  # file or folder, name, values
    for file in files:
        single = file.suffix.lower() == ".npy"
        try:
            opened: Any = np.load(file, allow_pickle=False, mmap_mode="r" if single else None)
            members = {file.stem: opened} if single else {n: opened[n] for n in opened.files}
        except UNREADABLE as error:
            raise UserError(
                f"{source.setting} = '{file}': cannot be read, it must hold plain arrays "
                f"({reason(error)})"
            ) from error
        place = file.parent.name if single else file.stem
        arrays += [(place, name, array) for name, array in members.items()]
    parts: list[tuple[str, Frame]] = []
    single_values: set[str] = set()
    for split in source.split.split("+"):
        found = _of_split(arrays, path, replace(source, split=split.strip()))
        columns = {name: array for name, array in found.items() if array.ndim}
        single_values |= found.keys() - columns.keys()
        table = arrow_table(columns, f"{source.setting} = '{path}':")
        parts.append((f"split {split!r}", Frame.of(table)))
    splits = (*source.split.replace(" ", "").split("+"), source.test, source.validation_split)
    rest = [n for place, n, _ in arrays if not any(_name_in(one, place, n) for one in splits)]
    said = left_out(sorted(single_values), "no rows")
    if len(rest) < len(arrays):  # else none is of a split: all are read
        said += left_out(rest, "not of this split")
    return replace(joined(parts, source.setting), account=tuple(said))


def _name_in(split: str, place: str, name: str) -> str:
    """Return what an array is called in a split; "" if it is not of that."""
    if place == split:
        return name
    ends = name.lower().endswith((f"_{split}".lower(), f"-{split}".lower()))
    return name[: -len(split) - 1] if ends else ""


def _of_split(
    arrays: list[tuple[str, str, npt.NDArray[Any]]], path: Path, source: Source
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one split by name: those whose file or name says so, without
    the split's name; else all of a single file or folder.
    """
    named = ((_name_in(source.split, place, name), array) for place, name, array in arrays)
    own = {name: array for name, array in named if name}
    places = {place for place, _, _ in arrays}
    if own or (source.split == "train" and len(places) == 1):
        return own or {name: array for _, name, array in arrays}
    hint = f" (a file per client: {source.client}={FILE})" * (len(places) > 1)
    raise UserError(
        f"{source.given_split}: no array of '{path}' is of this split: "
        f"name files {source.split}.npz or arrays x_{source.split}, or one of "
        f"{', '.join(f'{place}/{name}' for place, name, _ in arrays)}{hint}"
    )
