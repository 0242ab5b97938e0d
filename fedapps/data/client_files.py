"""A folder with a file, or a folder, of each client: the name, without its ending, is
the client's, in a column ``@file``.

``train/ann.csv`` and ``test/ann.csv`` are of one client. Without folders of the splits'
names all entries of the folder are of ``train``, and of an ``ann.npz`` its arrays
``x_train`` and ``x_test`` are those of the splits.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from fedapps.algorithms.common.checks import nearest
from fedapps.data.frame import Frame, joined, left_out
from fedapps.data.local_files import ARRAYS, KINDS, MEDIA, client_of, files_in, kind_of
from fedapps.data.source import FILE, Source
from fedapps.errors import UserError


def one_by_one(folder: Path | None, source: Source, read: Callable[[Path, Source], Frame]) -> Frame:
    """Return the samples of all clients, which ``read`` gives of each, with the column
    ``@file``. Raises ``UserError``.
    """
    if folder is None or not folder.is_dir():
        near = nearest(source.name, [one.name for one in Path().iterdir()]).strip()
        hint = f": {near}" * (bool(near) and folder is None)
        raise UserError(
            f"{source.client} = {FILE!r}: {source.given} is not a folder with one file per "
            f"client{hint}"
        )
    inside = folder / source.split
    if inside.is_dir():
        folder, source = inside, replace(source, split="train")
    parts: list[tuple[str, Frame]] = []
    empty: list[str] = []
    strange: list[str] = []
    said: list[str] = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        files = files_in(entry) if entry.is_dir() else [entry]
        kinds = {"", *(() if entry.is_dir() else (*MEDIA, "text"))}
        if set(map(kind_of, files)) <= kinds:
            (strange if files else empty).append(entry.name)
            continue
        if entry.is_file() and kind_of(entry) != ARRAYS and source.split != "train":
            raise UserError(
                f"{source.given_split}: no folder {source.split} lies beside {entry.name}, with "
                "its samples of that split"
            )
        given = replace(source, name=str(entry))
        if set(map(kind_of, files)) != {ARRAYS}:  # whose names say which are of a split
            given = replace(given, test="", validation_split="")
        frame = read(entry, given)
        said += frame.account[1:]
        if not len(frame):
            empty.append(entry.name)
            continue
        named = frame.by_name()
        client = pa.chunked_array([[client_of(entry)] * len(frame)], pa.string())
        parts.append((entry.name, replace(named, columns={**named.columns, FILE: client})))
    said += left_out(strange, "no file that is read") + left_out(empty, "without samples")
    if not parts:
        raise UserError(
            f"{source.client} = {FILE!r}: {folder} holds no file of a client: {', '.join(KINDS)}"
            + "".join(f"; {line}" for line in said)
        )
    line = f"{folder.name}: {sum(len(part) for _, part in parts)} rows of {len(parts)} clients"
    return replace(joined(parts, source.setting), account=(line, *dict.fromkeys(said)))
