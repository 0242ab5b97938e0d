"""Groups of samples by the values of a column (``data.group``), for measures by group
(``algorithms.fairness.groups``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fedapps.data.cache import Entry
from fedapps.data.columns import check_columns, check_plain, groups_of
from fedapps.data.options import DataOptions
from fedapps.data.samples import Categorical, Samples
from fedapps.data.source import Source
from fedapps.data.sources import cached
from fedapps.errors import UserError

#: More values than this are no groups: clients report some sixty numbers for each.
MAX_GROUPS = 20


@dataclass(frozen=True)
class Grouping:
    """By which column, "" for none, and by which limits of its numbers, () for its
    values as they are.
    """

    column: str = ""
    edges: tuple[float, ...] = ()

    def number(self, values: Iterable[Any]) -> Categorical:
        """Return the group of every sample; -1 where the value is missing.

        Raises ``UserError`` if the values make no groups.
        """
        # NaN differs from itself
        known = [None if value is None or value != value else value for value in values]
        levels = sorted(
            {value for value in known if value is not None},
            key=lambda value: (str(type(value)), value),
        )
        if self.edges:
            return self._between(known, levels)
        if not 1 < len(levels) <= MAX_GROUPS:
            remedy = (
                ": set data.group-edges, limits between numbers"
                if levels and all(map(_is_number, levels))
                else ""
            )
            raise UserError(
                f"data.group = {self.column!r}: the column has {len(levels)} values, from 2 to "
                f"{MAX_GROUPS} can be groups{remedy}"
            )
        place = {value: number for number, value in enumerate(levels)} | {None: -1}
        names = tuple(f"{level:g}" if isinstance(level, float) else str(level) for level in levels)
        return Categorical(np.array([place[value] for value in known], np.int64), names)

    def _between(self, known: list[Any], levels: list[Any]) -> Categorical:
        if not all(map(_is_number, levels)):
            raise UserError(
                f"data.group-edges: is for a column of numbers, but {self.column!r} holds text: "
                "leave it ''"
            )
        place = np.digitize(
            [np.nan if value is None else float(value) for value in known], self.edges
        )
        low, high = f"below {self.edges[0]:g}", f"from {self.edges[-1]:g}"
        inner = (f"{a:g} to below {b:g}" for a, b in pairwise(self.edges))
        codes = np.where([value is None for value in known], -1, place).astype(np.int64)
        return Categorical(codes, (low, *inner, high))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def grouping_of(options: DataOptions) -> Grouping:
    """Return the grouping that the options ask for."""
    return Grouping(options.group, options.edges)


def with_groups(samples: Samples, options: DataOptions) -> Samples:
    """Return the images with the group of each sample, read from the column
    ``data.group``. Raises ``UserError``.
    """
    source, grouping = Source.of(options), grouping_of(options)
    if source.name == "digits":
        raise UserError(f"data.group = {grouping.column!r}: the digits have no such column")

    def decode(data: Any, *_: Any) -> Entry:
        check_columns(data, source, {"data.group": grouping.column})
        check_plain(data, "data.group", grouping.column)
        groups = grouping.number(data[grouping.column])
        return {"group": groups.codes}, {"names": list(groups.names)}

    wanted = {"group": grouping.column, "group-edges": options.group_edges}
    arrays, facts = cached(source, wanted | {"natural-id": options.natural_id}, decode)
    groups = Categorical(np.array(arrays["group"]), tuple(facts["names"]))
    return replace(samples, groups=groups)


def with_persons(samples: Samples, options: DataOptions) -> Samples:
    """Return the samples with the person of each, read from the column
    ``data.group-split``. Raises ``UserError``, also for a person at several clients.
    """
    source, column = Source.of(options), options.group_split

    def decode(data: Any, *_: Any) -> Entry:
        check_columns(data, source, {"data.group-split": column})
        codes, names = groups_of(data, source, column)
        return {"person": codes}, {"names": names}

    wanted = {"group-split": column, "natural-id": options.natural_id}
    arrays, facts = cached(source, wanted, decode)
    persons = Categorical(np.array(arrays["person"]), tuple(facts["names"]))
    if samples.clients is not None:
        pairs = np.unique(np.stack([persons.codes, samples.clients.codes]), axis=1)[0]
        if len(shared := pairs[:-1][pairs[1:] == pairs[:-1]]):
            raise UserError(
                f"data.group-split = {column!r}: {len(set(shared))} persons have rows at several "
                f"clients, {persons.names[shared[0]]!r} for one: a test sample of one client could "
                "be of a person whom another trains on. Name a column within clients"
            )
    return replace(samples, persons=persons)
