"""Groups of samples by the values of a column (``data.group``), for measures by group
(``algorithms.fairness.groups``), and the persons whose rows stay together.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedapps.data.columns import coded
from fedapps.data.frame import Column, is_number
from fedapps.data.samples import Categorical, Indices
from fedapps.data.table_columns import word
from fedapps.errors import UserError, refuse_first

#: More values than this are no groups: clients report some sixty numbers for each.
MAX_GROUPS = 20


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
