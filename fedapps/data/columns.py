"""Columns of a data set: checked, and read as labels, as the client or the part of each
sample, or as its group, for measures by group (``algorithms.fairness.groups``).

A table's columns are read as numbers, words and categories. Messages show the type of
a value, never the value: the server reads those about a site's own table.
"""

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fedapps.algorithms.common.options import nearest
from fedapps.data import written_numbers
from fedapps.data.frame import Column, Frame, is_list, is_number, is_text, some
from fedapps.data.source import FILE, PART_NAMES, TRAIN, Categorical, Indices, Source
from fedapps.errors import UserError, refuse_first

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
#: More values than this are no groups: clients report some sixty numbers for each.
MAX_GROUPS = 20
#: What predicts numbers.
REGRESSION = "task = 'regression'"
#: Of each sample its client's.
Names = npt.NDArray[np.str_]


def check_columns(data: Frame, source: Source, columns: dict[str, str]) -> None:
    """Raise UserError unless the data have samples and the columns named by settings
    (setting -> column; "" is none).
    """
    if len(data) == 0:
        raise UserError(f"{source.given}: has no rows in this split")
    for setting, column in columns.items():
        if column and column not in data.columns:
            near = nearest(column, data.columns).strip()
            hint = f"; {FILE} stands for a sample's file or folder" * (setting == source.client)
            raise UserError(
                f"{setting} = {column!r}: {source} has the columns "
                f"{some(data.columns)}{f': {near}' if near else hint}"
            )


def check_plain(data: Frame, setting: str, column: str) -> None:
    """Raise ``UserError`` unless a column has one value per sample."""
    kind = data.columns[column].type
    size = getattr(kind, "list_size", 0)
    flat = "ravel()" if size == 1 else "argmax(1) where they are one number per class"
    refuse_first(
        (
            size and not is_list(kind.value_type),
            f"{setting} = {column!r}: has the shape (N, {size}): give one value per sample, as "
            f"{column}.{flat}",
        ),
        (
            str(kind).startswith("struct<") or is_list(kind),
            f"{setting} = {column!r}: holds no plain value per sample, name another of "
            f"{some(data.columns)}",
        ),
    )


def labels_of(data: Frame, source: Source, label: str) -> tuple[Indices, list[str]]:
    """Return the class indices (N,) in a column ("": detected by name) and what the
    classes are called.
    """
    label = label_column(data, source, label)
    check_plain(data, "data.label", label)
    # Labels of a ClassLabel are class indices already; others (letters, 1..26) are
    # numbered in sorted order.
    values, labels = numbered(data, label, source.first_row)
    noted = label in data.classes
    refuse_first(
        (
            noted and values.min() < 0,
            f"data.label = {label!r}: {source} has samples without a label in this split",
        ),
        (
            not noted and values.dtype.kind == "f" and (values != np.floor(values)).any(),
            f"data.label = {label!r}: holds fractions in {source}, which are no classes: name "
            "another column, "
            f"or predict numbers: {REGRESSION}",
        ),
        (
            not noted and len(values) > max(20, len(labels) // 2),
            f"data.label = {label!r}: has {len(values)} different values in {len(labels)} samples "
            f"of {source}: name a column of classes"
            + (f", or predict numbers: {REGRESSION}" if values.dtype.kind in "iuf" else ""),
        ),
    )
    if noted:
        return values[labels].astype(np.int64), [str(name) for name in data.classes[label]]
    return labels, _named(values)


def groups_of(data: Frame, source: Source, column: str) -> tuple[Indices, list[str]]:
    """Return the natural client (N,) of every sample, as an index into the list of
    names, and this list.
    """
    check_plain(data, source.client, column)
    ids, natural = numbered(data, column, source.first_row)
    return natural, _named(ids)


def parts_of(data: Frame, column: str) -> Indices:
    """Return the part (N,) of each sample that a column names: TRAIN, VALIDATION or
    TEST. Raises ``UserError``.
    """
    values, at = numbered(data.by_name(), column)
    words = [str(value) for value in values.tolist()]
    named = [PART_NAMES.get(word.strip().lower()) for word in words]
    refuse_first(
        *(
            (
                part is None,
                f"data.part = {column!r}: holds {word!r}: the parts are {', '.join(PART_NAMES)}",
            )
            for word, part in zip(words, named, strict=True)
        ),
        (TRAIN not in named, f"data.part = {column!r}: no sample of it is for training (train)"),
    )
    return np.array(named)[at]


def _named(values: npt.NDArray[Any]) -> list[str]:
    """Return values as text, whole numbers among floats without a point: 1.0 is client
    1.
    """
    return [
        f"{value:.15g}" if values.dtype.kind == "f" else str(value) for value in values.tolist()
    ]


def label_column(data: Frame, source: Source, name: str) -> str:
    """Return the label column: the named one, else one with a common name, else the
    only ClassLabel. It may hold arrays.
    """
    usual = [column for column in LABEL_NAMES if column in data.columns]
    unknown = not name and not usual and len(data.classes) != 1
    refuse_first(
        (
            unknown and set(data.columns) == data.images,
            f"data.label: the pictures of {source} lie in one folder, and no class is known: "
            "put those of each class into a folder of its name",
        ),
        (
            unknown,
            f"data.label: no label column found in {source}, name one of {some(data.columns)},"
            f" as data.label={[*data.columns][-1]}",
        ),
    )
    return name or (usual or list(data.classes))[0]


def coded(column: Column) -> tuple[list[Any], Indices]:
    """Return the different values of a column, sorted, and the number (N,) of that in
    each cell, -1 where one is missing or NaN.
    """
    parts = column.combine_chunks().dictionary_encode()
    found = parts.dictionary.to_pylist()
    order = sorted((k for k, value in enumerate(found) if value == value), key=found.__getitem__)
    place = np.full(len(found) + 1, -1)  # the last one: of no value
    place[order] = np.arange(len(order))
    return [found[k] for k in order], place[parts.indices.fill_null(-1).to_numpy()]


def numbered(data: Frame, name: str, first: int = 0) -> tuple[npt.NDArray[Any], Indices]:
    """Return the different values of a column, sorted, and the number (N,) of that in
    each cell. Raises ``UserError`` if some are missing.

    ``first``: the number of the first row in its file.
    """
    values, codes = coded(data.columns[name])
    missing = codes < 0
    if missing.any():
        raise UserError(
            f"column {name!r}: {missing.sum()} samples have no value in it (first: row "
            f"{int(missing.argmax()) + first}): fill or drop them"
        )
    return np.asarray(values), codes


def word(value: Any) -> str:
    """Return a value as written in the settings: 1.0 as 1, true as 1, and numbers of
    people with all their digits.
    """
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(int(value) if isinstance(value, bool) else value)


def grouped(column: Column, name: str, edges: tuple[float, ...] = ()) -> Categorical:
    """Return the group of every sample, -1 where the value is missing: of the values of
    a column or, with ``edges``, between these limits of its numbers.

    Raises ``UserError`` if the values make no groups.
    """
    levels, codes = coded(column)
    numeric = is_number(column.type) and str(column.type) != "bool"
    remedy = ": set data.group-edges, limits between numbers" * (numeric and bool(levels))
    refuse_first(
        (
            not edges and not 1 < len(levels) <= MAX_GROUPS,
            f"data.group = {name!r}: the column has {len(levels)} values, from 2 to "
            f"{MAX_GROUPS} can be groups{remedy}",
        ),
        (
            edges and not numeric,
            f"data.group-edges: is for a column of numbers, but {name!r} holds text: leave it ''",
        ),
    )
    if not edges:
        return Categorical(codes, tuple(map(word, levels)))
    place = np.append(np.digitize(np.array(levels, float), edges), -1)
    inner = (f"{a:g} to below {b:g}" for a, b in pairwise(edges))
    return Categorical(place[codes], (f"below {edges[0]:g}", *inner, f"from {edges[-1]:g}"))


def check_persons(persons: Indices, names: Sequence[str], clients: Indices, column: str) -> None:
    """Raise ``UserError`` for a person (``data.group-split``) at several clients, given
    the number (N,) of both for every sample, and the persons' names.
    """
    pairs = np.unique(np.stack([persons, clients]), axis=1)[0]
    if len(shared := pairs[:-1][pairs[1:] == pairs[:-1]]):
        raise UserError(
            f"data.group-split = {column!r}: {len(set(shared))} persons have rows at several "
            f"clients, {names[shared[0]]!r} for one: a test sample of one client could "
            "be of a person whom another trains on. Name a column within clients"
        )


def digest(value: str) -> str:
    """Return the name of the client with this value: not the value itself, which may
    name a person and stays at the site.
    """
    return blake2b(value.encode(), digest_size=6).hexdigest()


def rows_of(owners: Names, client_id: int | str) -> Indices:
    """Return the rows of the client ``SITE:NAME`` among those of ``owners`` (N,).
    Raises ``UserError`` if there are none.
    """
    mine = np.flatnonzero(owners == str(client_id).rpartition(":")[2])
    if not len(mine):
        raise UserError(f"client {client_id!r} has no rows at this site")
    return mine


Floats = NDArray[np.float64]
#: A column of text with so few values is one of categories, even if most are numbers.
FEW_VALUES = 12


def numbers_in(data: Frame, name: str, source: Source) -> tuple[Floats, str] | None:
    """Return a column of numbers (N,), NaN where one is missing, and how they were
    written, "" as usual; None for other things. Raises ``UserError`` if it is doubtful
    which numbers they are.
    """
    column = data.columns[name]
    kind = str(column.type)
    if kind == "null":
        return np.full(len(column), np.nan), ""
    if is_text(column.type):
        return as_numbers(column, name, source, data.commas)
    if name in data.classes or not (is_number(column.type) or kind.startswith("decimal")):
        return None
    whole = column.cast("int8") if kind == "bool" else column
    return np.asarray(whole.cast("float64", safe=False).to_numpy(), np.float64), ""


class OddCellsError(UserError):
    """A column may or may not be one of numbers."""


def as_numbers(
    column: Column, name: str, source: Source, commas: bool
) -> tuple[Floats, str] | None:
    """Return a column of text as numbers, NaN where one is missing, and how they were
    read; None if it is no column of numbers. Raises ``OddCellsError`` if most but not
    all cells are numbers, or it is doubtful which.
    """
    values, codes = coded(column)
    texts = [value.strip() for value in values]
    counts: Counter[str] = Counter()
    for text, count in zip(texts, np.bincount(codes[codes >= 0]).tolist(), strict=True):
        counts[text] += count
    del counts[""]
    total, odd = counts.total(), {text for text in counts if not written_numbers.is_number(text)}
    plain, how = total - sum(counts[text] for text in odd), ""
    words = not any(re.search(r"\d", text) for text in odd) and plain > 0.9 * total
    other = "write its values in sites.columns" if source.is_site else "name it in data.categorical"
    remedy = f"mend them, or {other}" + " or data.drop" * (not source.is_site)
    if counts and {text.lower() for text in counts} <= {"true", "false"}:
        found = {text: float(text.lower() == "true") for text in counts}
    elif not total or plain < total / 2 or (odd and len(counts) <= FEW_VALUES and not words):
        return None  # also 0, 1, 2, 3+, but not a few "unknown" among numbers
    elif odd:
        strange = [place for place, text in enumerate(texts) if text in odd]
        row = int(np.isin(codes, strange).argmax()) + source.first_row
        raise OddCellsError(
            f"column {name!r}: {total - plain} of {len(codes)} rows hold text where the others "
            f"hold numbers (first: row {row} of {source}): {remedy}"
        )
    else:
        try:
            found, how = written_numbers.numbers_of(counts, commas)
        except written_numbers.DoubtfulError as error:
            raise OddCellsError(
                f"column {name!r} of {source}: it is doubtful which numbers it holds: {error}: "
                f"{remedy}"
            ) from None
    return np.array([*(found.get(text, np.nan) for text in texts), np.nan])[codes], how


def finite(column: Floats, name: str, source: Source) -> NDArray[np.float32]:
    """Return numbers in the precision of inputs. Raises ``UserError`` if some are
    infinite there, or their differences are lost.
    """
    wrong = np.flatnonzero(np.abs(column) > np.finfo(np.float32).max).tolist()
    remedy = ", or name it in data.drop" * (not source.is_site)
    refuse_first(
        (
            wrong,
            f"column {name!r} holds infinite or too large numbers (first: row "
            f"{sum(wrong[:1]) + source.first_row} of {source}): mend them{remedy}",
        ),
        (
            (known := column[np.isfinite(column)]).size  # an error of 2 % of the deviation
            and 0 < known.std() < 2**-18 * np.abs(known).max(),
            f"column {name!r} of {source}: its numbers differ by too little for their size, so "
            f"single precision loses that: take a number off all of them{remedy}",
        ),
    )
    return column.astype(np.float32)


def words(data: Frame, name: str) -> list[str]:
    """Return the cells of a column as words, "" where one is missing."""
    return [
        "" if cell is None or cell != cell else word(cell).strip()  # NaN differs from itself
        for cell in data[name]
    ]


def dummies(
    name: str, levels: Sequence[Any], codes: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    """Return the features of a category by their names: of two levels whether it is the
    second, of more whether it is each; NaN where none is (``codes`` (N,) of -1).
    """
    first = 1 if len(levels) == 2 else 0
    return {
        f"{name}={word(level)}": np.where(codes < 0, np.nan, codes == place).astype(np.float32)
        for place, level in enumerate(levels[first:], first)
    }


def no_target(what: str, kind: str) -> str:
    """Return the message for a column to predict that holds no numbers but ``kind``."""
    return (
        f"{what}: holds {kind}, and regression predicts numbers: name another column, or choose "
        "task = 'classification'"
    )


def check_targets(y: Floats, what: str, first: int = 0) -> None:
    """Raise ``UserError``, which begins with ``what``, unless numbers to predict (N,
    targets) are finite and differ. ``first``: the number of the
    first row in its file.
    """
    wrong = ~np.isfinite(y).all(1)
    if wrong.any():
        raise UserError(
            f"{what}: {int(wrong.sum())} of {len(y)} rows hold no value to predict, or an infinite "
            f"one (first: row {int(np.argmax(wrong)) + first}): fill or drop them"
        )
    constant = np.flatnonzero(np.ptp(y, axis=0) == 0)
    if len(constant):
        which = f" at place {constant[0] + 1}" if y.shape[1] > 1 else ""
        raise UserError(
            f"{what}: has one and the same value{which} in every row: there is nothing to predict"
        )
