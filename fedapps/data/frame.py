"""The samples of a source as they were read: columns of Arrow, and what they hold."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedapps.errors import UserError

if TYPE_CHECKING:  # imported where it is used: a worker with a warm cache does without
    import pyarrow as pa

#: A column of a table.
Column: TypeAlias = "pa.ChunkedArray"


@dataclass(frozen=True)
class Frame:
    """``columns`` of N cells each. ``classes``: the names of classes whose numbers a
    column holds. ``images``: columns of encoded pictures. ``commas``: the file writes
    decimal commas. ``account``: what was read and what was left out and why, a line
    each.
    """

    columns: Mapping[str, Column]
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    commas: bool = False
    account: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: "pa.Table") -> "Frame":
        """Return the columns of an Arrow table, with the classes and pictures that the
        library `datasets` notes in its schema.
        """
        noted = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features: dict[str, Any] = noted.get("info", {}).get("features", {})
        kinds = {name: one.get("_type") for name, one in features.items() if isinstance(one, dict)}
        check_names(table.column_names)
        columns = dict(zip(table.column_names, map(_plain, table.columns), strict=True))
        classes = {n: features[n]["names"] for n, kind in kinds.items() if kind == "ClassLabel"}
        images = {
            name
            for name, column in columns.items()
            if kinds.get(name, "Image") == "Image"
            and str(column.type).startswith("struct<")
            and column.type.get_field_index("bytes") >= 0  # files: their bytes or their paths
        }
        return cls(columns, classes, frozenset(images))

    @classmethod
    def of_dataset(cls, data: Any) -> "Frame":
        """Return the columns of a `datasets.Dataset`."""
        noted = data.features.arrow_schema.metadata
        return cls.of(data.with_format("arrow")[:].replace_schema_metadata(noted))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> list[Any]:
        """Return the cells of a column as Python's objects, classes by their names."""
        cells: list[Any] = self.columns[name].to_pylist()
        if names := self.classes.get(name):
            cells = [None if cell is None or cell < 0 else names[cell] for cell in cells]
        return cells

    def take(self, rows: npt.NDArray[np.int64]) -> "Frame":
        """Return the samples with these numbers."""
        return replace(self, columns={name: one.take(rows) for name, one in self.columns.items()})

    def by_names(self, name: str) -> Column:
        """Return a column, of classes by their names."""
        import pyarrow as pa

        noted = name in self.classes
        return pa.chunked_array([self[name]], pa.string()) if noted else self.columns[name]

    def by_name(self) -> "Frame":
        """Return the samples with classes by their names, as text."""
        return replace(self, columns={n: self.by_names(n) for n in self.columns}, classes={})

    def kind(self, name: str) -> str:
        """Return what a column holds, in the user's words."""
        kind = self.columns[name].type
        return "classes" if name in self.classes else "text" if is_text(kind) else str(kind)


def joined(parts: Sequence[tuple[str, Frame]], setting: str) -> Frame:
    """Return the samples of all parts, of which each has a name for messages: whole
    numbers of one and fractions of another are fractions. Raises ``UserError``.
    """
    import pyarrow as pa

    first, frame = parts[0]
    if any(part.classes != frame.classes for _, part in parts):
        parts = [(name, part.by_name()) for name, part in parts]
        frame = parts[0][1]
    for other, part in parts[1:]:
        if differing := frame.columns.keys() ^ part.columns.keys():
            raise UserError(
                f"{setting}: column {min(differing)!r} is in only one of {first} and {other}: give "
                "all files the same"
            )
    columns = {}
    for name, column in frame.columns.items():
        common = pa.schema([(name, column.type)])
        for other, part in parts[1:]:
            here = pa.schema([(name, part.columns[name].type)])
            sizes = _sizes(column.type), _sizes(here.types[0])
            try:
                if all(sizes) and sizes[0] != sizes[1]:  # would be lists of any size
                    raise pa.ArrowTypeError
                common = pa.unify_schemas([common, here], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise UserError(
                    f"{setting}: column {name!r} {_holds(column.type, first)}, "
                    f"{_holds(here.types[0], other)}: write it the same way in all"
                ) from None
        kind = common.types[0]
        pieces = [part.columns[name].cast(kind) for _, part in parts]
        columns[name] = pa.chunked_array([c for piece in pieces for c in piece.chunks], kind)
    return Frame(
        columns,
        frame.classes,
        frame.images,
        any(part.commas for _, part in parts),
        tuple(dict.fromkeys(line for _, part in parts for line in part.account)),
    )


def some(names: Collection[str]) -> str:
    """Return the first 30 names as text, for a message."""
    rest = len(names) - 30
    return ", ".join([*names][:30]) + (f" and {rest} more" if rest > 0 else "")


def left_out(names: Iterable[str], why: str) -> list[str]:
    """Return the line of an account about files or clients that are left out."""
    listed = list(names)
    shown = ", ".join(listed[:5]) + (f", ... ({len(listed)} in all)" if len(listed) > 5 else "")
    return [f"left out ({why}): {shown}"] if listed else []


def check_names(names: Sequence[str]) -> None:
    """Raise ``ValueError`` if several columns have one name."""
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"several columns are called {doubled[0]!r}: rename them")


def is_text(kind: "pa.DataType") -> bool:
    """Return whether a column of this type holds text."""
    return str(kind) in ("string", "large_string")


def is_number(kind: "pa.DataType") -> bool:
    """Return whether a column of this type holds numbers."""
    return str(kind).rstrip("0123456789") in ("int", "uint", "halffloat", "float", "double", "bool")


def is_list(kind: "pa.DataType") -> bool:
    """Return whether a column of this type holds lists."""
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))


def _plain(column: Column) -> Column:
    """Return a column with categories as their values and extensions as stored."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _sizes(kind: "pa.DataType") -> list[str]:
    """Return the size of a sample in a column of lists of fixed sizes: 9, 128."""
    sizes = []
    while str(kind).startswith("fixed_size_list<"):
        sizes.append(str(kind.list_size))
        kind = kind.value_type
    return sizes


def _holds(kind: "pa.DataType", where: str) -> str:
    """Return what a column of this type holds, in the user's words."""
    held = "numbers" if is_number(kind) else "text" if is_text(kind) else str(kind)
    sizes = _sizes(kind)
    return f"holds {' x '.join(sizes) + ' values' if sizes else held} in {where}"
