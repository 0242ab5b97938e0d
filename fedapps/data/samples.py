"""Samples with labels: what every reader of a data set returns, and what partitions
deal to the clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.data.source import TRAIN

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
