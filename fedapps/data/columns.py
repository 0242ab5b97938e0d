"""Columns of a data set: checked, and read as labels, as the client of each sample, or
as its part.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.checks import nearest
from fedapps.data.source import FILE, TEST, TRAIN, VALIDATION, Source
from fedapps.errors import UserError

# The `datasets` library is imported where it is used: it takes a second, which a worker
# with a warm cache avoids.
LABEL_NAMES = (
    "label",
    "labels",
    "fine_label",
    "character",
    "y",
    "target",
    "class",
    "digit",
    "activity",
)
#: What predicts numbers.
REGRESSION = "task = 'regression'"


def check_columns(data: Any, source: Source, columns: dict[str, str]) -> None:
    """Raise UserError unless the data have samples and the columns named by settings
    (setting -> column; "" is none).
    """
    if len(data) == 0:
        raise UserError(f"{source.given}: has no samples in this split")
    names = data.column_names
    if len(names) == 1 and (sign := next((sign for sign in ";\t|" if sign in names[0]), "")):
        raise UserError(
            f"{source.given}: its columns are separated by {sign!r}: save it with commas"
        )
    for setting, column in columns.items():
        if column and column not in data.column_names:
            near = nearest(column, data.column_names).strip()
            hint = f"; {FILE} stands for a sample's file or folder" * (setting == source.client)
            raise UserError(
                f"{setting} = {column!r}: {source} has the columns "
                f"{', '.join(data.column_names)}{f': {near}' if near else hint}"
            )


def is_class(feature: Any) -> bool:
    """Return whether a column holds classes, numbered in the order of their names."""
    import datasets

    return isinstance(feature, datasets.ClassLabel)


def check_plain(data: Any, setting: str, column: str) -> None:
    """Raise ``UserError`` unless a column has one value per sample."""
    import datasets

    if not isinstance(data.features[column], datasets.ClassLabel | datasets.Value):
        raise UserError(
            f"{setting} = {column!r}: holds no plain value per sample, name another of "
            f"{', '.join(data.features)}"
        )


def labels_of(data: Any, source: Source, label: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the class indices (N,) in a column ("": detected by name) and what the
    classes are called.
    """
    label = label_column(data.features, source, label)
    check_plain(data, "data.label", label)
    # Labels of a ClassLabel are class indices already; others (letters, 1..26) are
    # numbered in sorted order.
    raw = column_of(data, label, source.first_row)
    declared = data.features[label]
    if is_class(declared):
        if raw.min() < 0:
            raise UserError(
                f"data.label = {label!r}: {source} has samples without a label in this split"
            )
        return raw.astype(np.int64), [str(name) for name in declared.names]
    if raw.dtype.kind == "f" and (raw != np.floor(raw)).any():
        raise UserError(
            f"data.label = {label!r}: holds fractions in {source}, which are no classes: name "
            "another column, "
            f"or predict numbers: {REGRESSION}"
        )
    values, labels = np.unique(raw, return_inverse=True)
    if len(values) > max(20, len(raw) // 2):
        raise UserError(
            f"data.label = {label!r}: has {len(values)} different values in {len(raw)} samples of "
            f"{source}: name a column of classes"
            + (f", or predict numbers: {REGRESSION}" if values.dtype.kind in "iuf" else "")
        )
    return labels.astype(np.int64), _named(values)


def groups_of(data: Any, source: Source, column: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the natural client (N,) of every sample, as an index into the list of
    names, and this list.
    """
    check_plain(data, source.client, column)
    ids, natural = np.unique(column_of(data, column, source.first_row), return_inverse=True)
    return natural.astype(np.int64), _named(ids)


#: What a column may call the parts of a set.
PART_NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}


def parts_of(data: Any, column: str) -> npt.NDArray[np.int64]:
    """Return the part (N,) of each sample that a column names: TRAIN, VALIDATION or
    TEST. Raises ``UserError``.
    """
    values = column_of(data, column)
    words = [str(value) for value in with_names(data.features[column], values, missing=-1)]
    strange = sorted({word for word in words if word.strip().lower() not in PART_NAMES})
    if strange:
        raise UserError(
            f"data.part = {column!r}: holds {strange[0]!r}: the parts are {', '.join(PART_NAMES)}"
        )
    parts = np.array([PART_NAMES[word.strip().lower()] for word in words])
    if not (parts == TRAIN).any():
        raise UserError(f"data.part = {column!r}: no sample of it is for training (train)")
    return parts


def _named(values: npt.NDArray[Any]) -> list[str]:
    """Return values as text, whole numbers among floats without a point: 1.0 is client
    1.
    """
    return [
        f"{value:.15g}" if values.dtype.kind == "f" else str(value) for value in values.tolist()
    ]


def label_column(features: Any, source: Source, name: str) -> str:
    """Return the label column: the named one, else one with a common name, else the
    only ClassLabel. It may hold arrays.
    """
    classes = [column for column, feature in features.items() if is_class(feature)]
    usual = [column for column in LABEL_NAMES if column in features]
    if not name and not usual and len(classes) != 1:
        raise UserError(
            f"data.label: no label column found in {source}, name one of {', '.join(features)}, as "
            f"data.label={list(features)[-1]}"
        )
    return name or (usual or classes)[0]


def with_names(feature: Any, values: Iterable[Any], missing: Any = None) -> list[Any]:
    """Return the names of classes; other values as they are.

    ``missing``: for samples without a class, which the library numbers -1.
    """
    if not is_class(feature):
        return list(values)
    return [
        feature.int2str(int(value)) if value is not None and value >= 0 else missing
        for value in values
    ]


def column_of(data: Any, name: str, first: int = 0) -> npt.NDArray[Any]:
    """Return the values (N,) of a column. Raises ``UserError`` if some are missing.

    ``first``: the number of the first row in its file.
    """
    import pyarrow.compute as pc

    column = data.with_format("arrow")[name][:]
    missing = pc.is_null(column, nan_is_null=True).to_numpy()
    if missing.any():
        raise UserError(
            f"column {name!r}: {missing.sum()} samples have no value in it (first: row "
            f"{int(missing.argmax()) + first}): fill or drop them"
        )
    texts = column.type in ("string", "large_string")
    return np.asarray(column.to_pylist() if texts else column.to_numpy())
