"""Observed entries of a matrix: of a generated one, of generated ratings, of the
bundled digits, or of a table of ratings.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator
from fedapps.data.columns import check_columns
from fedapps.data.source import GENERATED, Source
from fedapps.data.sources import digits_table, open_split
from fedapps.errors import UserError
from fedapps.tasks.options import MatrixCompletionOptions

#: Rank of a generated matrix, and of the tastes of generated users.
RANK = 3


@dataclass(frozen=True)
class Observations:
    """Entries ``values`` (m,) at ``rows``, ``columns`` (m,) of a matrix; ``norm``: its
    nuclear norm, or 0 if unknown.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    shape: tuple[int, int]
    norm: float = 0.0


def observations(options: MatrixCompletionOptions, source: Source, seed: int) -> Observations:
    """Return the observations of the source, in random order. Raises ``UserError`` if
    they cannot be read.
    """
    if source.name == "ratings":
        found = generated_ratings(options, seed)
    elif source.name == "digits":
        found = of_matrix(digits_table()[:, :-1] / 16, replace(options, noise=0.0), seed)
    elif source.name == GENERATED:
        found = of_matrix(low_rank(options, seed), options, seed)
    else:
        found = read_ratings(options, source)
    order = generator(seed, "observations").permutation(len(found.values))
    return Observations(
        found.rows[order], found.columns[order], found.values[order], found.shape, found.norm
    )


def low_rank(options: MatrixCompletionOptions, seed: int) -> NDArray[np.float64]:
    """Return a random matrix of rank ``RANK`` with entries of about unit size (default
    60 x 80).
    """
    rng = generator(seed, "low rank")
    rows, columns = options.rows or 60, options.columns or 80
    left, right = rng.normal(size=(rows, RANK)), rng.normal(size=(RANK, columns))
    return np.asarray(left @ right / math.sqrt(RANK))


def of_matrix(
    matrix: NDArray[np.float64], options: MatrixCompletionOptions, seed: int
) -> Observations:
    """Return randomly chosen entries of a matrix, with noise."""
    rng = generator(seed, "observed entries")
    wanted = options.observations or matrix.size // 2
    if wanted > matrix.size:
        raise UserError(
            f"matrix-completion.observations = {wanted}, but the matrix has {matrix.size} entries: "
            "choose fewer"
        )
    at = rng.choice(matrix.size, wanted, replace=False)
    values = matrix.ravel()[at] + options.noise * rng.normal(size=wanted)
    rows, columns = np.divmod(at, matrix.shape[1])
    p, q = matrix.shape
    return Observations(rows, columns, values, (p, q), float(np.linalg.norm(matrix, "nuc")))


def generated_ratings(options: MatrixCompletionOptions, seed: int) -> Observations:
    """Return ratings from 1 to 5 of as many users and items as MovieLens-100k has,
    where few of both have most of the ratings.

    A rating is a mean, a bias of the user, one of the item, a part of rank ``rank`` and
    noise, rounded; popular items are liked better.
    """
    rng = generator(seed, "ratings")
    p, q, wanted = options.rows or 943, options.columns or 1682, options.observations or 100_000
    if wanted > p * q // 2:
        raise UserError(
            f"matrix-completion.observations = {wanted}, but the matrix has {p * q} entries: "
            "choose at most half of them"
        )
    activity, popularity = 0.9 * rng.normal(size=p), 1.5 * rng.normal(size=q)
    # The largest: drawn without replacement. Sorted, since the order of a partition
    # depends on the processor, and so would what is drawn for an entry.
    keys = (activity[:, None] + popularity).ravel() + rng.gumbel(size=p * q)
    rows, columns = np.divmod(np.sort(np.argpartition(-keys, wanted)[:wanted]), q)
    users, items = 0.45 * rng.normal(size=p), 0.5 * rng.normal(size=q) + 0.1 * popularity
    left, right = rng.normal(size=(p, RANK)), rng.normal(size=(q, RANK))
    tastes = (left[rows] * right[columns]).sum(axis=1) * (0.5 / math.sqrt(RANK))
    values = 3.6 + users[rows] + items[columns] + tastes + 0.85 * rng.normal(size=wanted)
    return Observations(rows, columns, np.clip(np.rint(values), 1, 5), (p, q))


def read_ratings(options: MatrixCompletionOptions, source: Source) -> Observations:
    """Return the ratings of a table. Raises ``UserError`` if it is invalid."""
    table = open_split(source)
    names = {"user": options.user, "item": options.item, "rating": options.rating}
    check_columns(table, source, {f"matrix-completion.{key}": name for key, name in names.items()})
    places, sizes = [], []
    for key, size, setting in (
        ("user", options.rows, "rows"),
        ("item", options.columns, "columns"),
    ):
        column = table.columns[names[key]].to_numpy()
        if column.dtype.kind == "O":
            column = np.array([int(word) if word.isdigit() else -1 for word in map(str, column)])
        if column.dtype.kind not in "iu" or column.min() < 0:
            raise UserError(
                f"matrix-completion.{key} = {names[key]!r}: holds other values than whole numbers "
                "from 0 on"
            )
        at = column.astype(np.int64) - (1 if column.min() > 0 else 0)
        if size and at.max() >= size:
            raise UserError(
                f"matrix-completion.{setting} = {size}, but {names[key]!r} goes up to "
                f"{column.max()}: set it to 0"
            )
        places.append(at)
        sizes.append(size or int(at.max()) + 1)
    values = table.columns[names["rating"]].to_numpy()
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise UserError(
            f"matrix-completion.rating = {names['rating']!r}: holds other values than finite "
            "numbers"
        )
    flat = places[0] * sizes[1] + places[1]
    found, counts = np.unique(flat, return_counts=True)
    if len(found) < len(flat):
        row, column = divmod(int(found[counts > 1][0]), sizes[1])
        raise UserError(
            f"{source.given}: {len(flat) - len(found)} ratings "
            "repeat a pair of user and item, "
            f"the first one numbers {row} and {column} from 0 on: keep one of each"
        )
    return Observations(places[0], places[1], values.astype(np.float64), (sizes[0], sizes[1]))
