"""A source of samples and the settings that name it; and samples with labels, which
every reader of a data set returns and partitions deal to the clients.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.options import nearest
from fedapps.data.options import DataOptions
from fedapps.errors import UserError

#: Endings of files, which no hub set's name has: one that is not there is not looked
#: for elsewhere.
ENDINGS = (
    *(".csv", ".tsv", ".parquet", ".arrow", ".json", ".jsonl", ".npz", ".npy", ".txt", ".zip"),
    *(".gz", ".bz2", ".zst", ".xlsx"),
)
#: Stands for a column: names a sample's file.
FILE = "@file"
#: The setting of the clients' column in sites' own data.
SITE_CLIENT = "sites.client"
#: A set that the task generates.
GENERATED = "generated"
#: The parts of a set: samples to train on, to validate with, to be scored on.
TRAIN, VALIDATION, TEST = range(3)
#: What people call them.
PART_NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), TEST),
}


def is_local(source: str) -> bool:
    """Return whether a source is a folder or file, not a hub name: it exists, or is
    written as a path or a file.
    """
    return (
        source.startswith(("/", "./", "../", "~"))
        or source in (".", "..")
        or source.lower().endswith(ENDINGS)
        or Path(source).exists()
    )


@dataclass(frozen=True)
class Source:
    """A folder, a file or a hub set, which of its splits are read, and the settings
    that say so: error messages name these.

    ``test``, ``validation_split``: further splits, "" for none. ``table``, ``key``: the
    setting of ``name``. ``split_setting``: that of ``split``, "" for ``split`` in the
    same table. ``client``: that of the column that names a sample's client.
    """

    name: str
    split: str = "train"
    config: str = ""
    test: str = ""
    validation_split: str = ""
    table: str = "data"
    key: str = "source"
    split_setting: str = ""
    client: str = "data.natural-id"

    @classmethod
    def of(cls, options: DataOptions) -> "Source":
        """Return the source in the table ``data``."""
        return cls(
            options.source, options.split, options.config, options.test, options.validation_split
        )

    def __str__(self) -> str:
        return self.name

    @property
    def is_site(self) -> bool:
        """Whether these are a site's own data: the server reads messages about them."""
        return self.client == SITE_CLIENT

    @property
    def setting(self) -> str:
        """The setting of the name."""
        return f"{self.table}.{self.key}"

    @property
    def given(self) -> str:
        """The setting of the name with its value."""
        return f"{self.setting} = {self.name!r}"

    @property
    def given_split(self) -> str:
        """The setting of the split with its value."""
        return f"{self.split_setting or f'{self.table}.split'} = {self.split!r}"

    @property
    def first_row(self) -> int:
        """The number of the first row as the file counts: of a csv the header is row
        1.
        """
        return 2 if re.search(r"\.[ct]sv(\.\w+)?$", self.name.lower()) else 0

    def local_path(self) -> Path | None:
        """Return the folder or file; None for a hub name. Raises ``UserError`` if it
        does not exist.
        """
        if self.name == "digits":
            raise UserError(
                f"{self.given}: this task cannot use them: name a folder or a hub data set"
            )
        path = Path(self.name).expanduser().resolve() if is_local(self.name) else None
        if path is not None and not path.exists():
            what = "file" if self.name.lower().endswith(ENDINGS) else "folder"
            beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = nearest(path.name, beside).strip()
            raise UserError(f"{self.given}: there is no such {what}{f': {hint}' if hint else ''}")
        return path


Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Categorical:
    """A column of names: ``codes`` (N,) are indices into ``names``, -1 for none."""

    codes: Indices
    names: tuple[str, ...]

    def __getitem__(self, rows: npt.NDArray[Any]) -> "Categorical":
        return Categorical(self.codes[rows], self.names)

    @property
    def members(self) -> npt.NDArray[np.bool_]:
        """Whether each sample has each name (N, names)."""
        return np.equal(self.codes[:, None], np.arange(len(self.names)))


@dataclass(frozen=True)
class Columns:
    """The columns of a table; () for arrays. ``used``: the features; ``left_out``:
    columns that hold neither numbers nor categories; ``categories``: columns whose
    values are features; ``written``: what is to be said of columns of numbers;
    ``scaled`` (F,): which features are numbers. ``known``: those of a preset.

    ``suggested``: one that looks like that of the clients.
    """

    used: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    scaled: tuple[bool, ...] = ()
    known: bool = False
    suggested: str = ""


@dataclass(frozen=True)
class Samples:
    """``x`` (N, ...), and ``labels`` (N,), int64 in 0..num_classes-1, which ``classes``
    names.

    ``x`` holds images (N, C, H, W), uint8 in 0..255 or float32 in [0, 1]; vectors and
    windows of sensors (N, C, 1, L), float32, whose ``numbers`` are in units of their
    own; sounds (N, 1, 1, L), int16; or tokens (N, L), int64.

    ``clients``: the natural client of each sample, if requested; ``groups``: its group,
    for measures by group; ``persons``: whose rows stay together. ``parts`` (N,): TRAIN,
    VALIDATION or TEST; None: the data do not say. ``by`` (N,): the values that a
    partitioner goes by, if these are not the labels. ``targets`` (N, targets): the
    numbers to predict, where there are no classes; all labels are then 0. ``account``:
    what was read and what was left out and why, a line each.
    """

    x: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    num_classes: int
    classes: tuple[str, ...] = ()
    clients: Categorical | None = None
    groups: Categorical | None = None
    persons: Categorical | None = None
    parts: Indices | None = None
    numbers: Columns | None = None
    by: npt.NDArray[Any] | None = None
    targets: npt.NDArray[np.float64] | None = None
    account: tuple[str, ...] = ()

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> "Samples":
        """Return the samples of an entry of the cache: arrays by their names here,
        ``x`` as stored, and among the facts the ``names`` of each :class:`Categorical`,
        the ``classes``, ``numbers`` and the ``account``.
        """
        found: dict[str, Any] = {name: np.array(arrays[name]) for name in arrays if name != "x"}
        for key, names in facts["names"].items():
            found[key] = Categorical(found[key], tuple(names))
        if numbers := facts.get("numbers"):
            columns: dict[str, Any] = {
                key: tuple(v) if isinstance(v, list) else v for key, v in numbers.items()
            }
            found["numbers"] = Columns(**columns)
        classes = tuple(facts.get("classes", ()))
        found["account"] = tuple(facts["account"])
        return cls(arrays["x"], num_classes=len(classes) or 1, classes=classes, **found)

    def take(self, rows: npt.NDArray[Any]) -> "Samples":
        """Return the samples with these numbers, or where a mask is true."""
        names = ("x", "labels", "clients", "groups", "persons", "parts", "by", "targets")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{n: one[rows] for n, one in given.items() if one is not None})

    def part(self, number: int) -> npt.NDArray[np.bool_] | None:
        """Return which samples (N,) are of this part; None if there is no such part."""
        mine = None if self.parts is None else self.parts == number
        return mine if mine is not None and mine.any() else None

    @property
    def dealt(self) -> Indices:
        """The numbers of the samples that are dealt to clients: those to train on."""
        every = np.arange(len(self.labels))
        return every if self.parts is None else every[self.parts == TRAIN]
