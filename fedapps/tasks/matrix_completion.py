"""Task ``matrix-completion``: minimise the squared error on observed entries over a nuclear-norm ball.

Observations: a generated low-rank matrix, the bundled digits with hidden pixels, or a table of ratings from a folder or the hub.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022, section 5.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorithms.common.seeds import generator
from algorithms.frank_wolfe.atoms import Array
from algorithms.frank_wolfe.domain import Domain
from algorithms.frank_wolfe.matrix_domains import NuclearBall
from algorithms.frank_wolfe.objectives import MatrixCompletion
from clients.families.problems import ObjectiveProblem, Problem
from fedapps.data.sources import check_columns, digits_table, open_split
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.convex import NON_ZERO, ConstrainedTask
from fedapps.tasks.options import MatrixCompletionOptions

# Points with at least this many entries are stored in single precision: half the memory and time.
SINGLE_PRECISION = 2**18


@dataclass(frozen=True)
class Observations:
    """Entries ``values`` (m,) at ``rows``, ``columns`` (m,) of a matrix; ``norm``: its nuclear norm, or 0 if unknown."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    shape: tuple[int, int]
    norm: float = 0.0


class Completion(ConstrainedTask):
    """Matrix completion; the observations are shuffled, split into training and test, and dealt evenly to the clients."""

    name = "matrix-completion"
    lambda_0 = (1e-5, 1e-5)
    learning_rate = 0.5  # one over the smoothness constant of every f_i

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        if not self.options.source or self.options.source == "digits":
            # The paper's value is for 2,500 ratings per client; fewer observations need a larger penalty.
            self.lambda_0 = (1e-2, 1e-3)

    @cached_property
    def observed(self) -> Observations:
        """The shuffled observations, in the order in which they are dealt."""
        o = self.options
        if o.source and o.source != "digits":
            found = read_ratings(o)
        else:
            found = of_matrix(digits() if o.source else low_rank(o, self.seed), o, self.seed)
        order = generator(self.seed, "observations").permutation(len(found.values))
        return Observations(found.rows[order], found.columns[order], found.values[order], found.shape, found.norm)

    @cached_property
    def domain(self) -> Domain:
        """The nuclear-norm ball."""
        radius = self.options.radius or self.observed.norm
        if not radius:
            raise UserError("matrix-completion.radius = 0: of a table of ratings the norm is not known: set it above 0")
        return NuclearBall(self.observed.shape, radius)

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the domain's initial point, in single precision if it is large."""
        start = self.domain.start()
        return {"x": start.astype(np.float32) if start.size >= SINGLE_PRECISION else start}

    def make(self, client: int, num_clients: int) -> Problem:
        """Return the f_i of a part of the training observations; its metrics are the mean squared errors on training and test parts."""
        cut = round(self.options.test * len(self.observed.values))
        tests = self.deal(cut, "test observations", client, num_clients)
        rows = cut + self.deal(len(self.observed.values) - cut, "training observations", client, num_clients)
        train, test = self._part(rows), self._part(tests)

        def errors(x: Array) -> dict[str, float]:
            return {"mse": train.value(x) / train.num_examples, "test-mse": test.value(x) / test.num_examples}

        return ObjectiveProblem(train, None, errors)

    def _part(self, at: NDArray[np.int64]) -> MatrixCompletion:
        o = self.observed
        return MatrixCompletion(o.rows[at], o.columns[at], o.values[at], o.shape)

    def measure(self, x: Array, means: Mapping[str, float], num_clients: int) -> dict[str, float]:
        """Return the root mean squared errors and the rank."""
        sizes = np.linalg.svd(x, compute_uv=False)
        rank = float((sizes > NON_ZERO * sizes[0]).sum())
        return {"rmse": math.sqrt(means["mse"]), "test-rmse": math.sqrt(means["test-mse"]), "rank": rank}


def low_rank(options: MatrixCompletionOptions, seed: int) -> NDArray[np.float64]:
    """Return a random matrix of rank ``rank`` with entries of about unit size (default 60 x 80)."""
    rng = generator(seed, "low rank")
    rows, columns = options.rows or 60, options.columns or 80
    left, right = rng.normal(size=(rows, options.rank)), rng.normal(size=(options.rank, columns))
    return np.asarray(left @ right / math.sqrt(options.rank))


def digits() -> NDArray[np.float64]:
    """Return the bundled digits as rows, with pixels in [0, 1]: (1797, 64)."""
    return digits_table()[:, :-1] / 16


def of_matrix(matrix: NDArray[np.float64], options: MatrixCompletionOptions, seed: int) -> Observations:
    """Return randomly chosen entries of a matrix, with noise if it is generated."""
    rng = generator(seed, "observed entries")
    wanted = options.observations or matrix.size // 2
    if wanted > matrix.size:
        raise UserError(f"matrix-completion.observations = {wanted}, but the matrix has {matrix.size} entries: choose fewer")
    at = rng.choice(matrix.size, wanted, replace=False)
    values = matrix.ravel()[at] + (0 if options.source else options.noise * rng.normal(size=wanted))
    rows, columns = np.divmod(at, matrix.shape[1])
    shape = (matrix.shape[0], matrix.shape[1])
    return Observations(rows, columns, values, shape, float(np.linalg.norm(matrix, "nuc")))


def read_ratings(options: MatrixCompletionOptions) -> Observations:
    """Return the ratings of a table. Raises ``UserError`` if it is invalid."""
    table = open_split(options.source, options.split, setting="matrix-completion.split")
    names = {"user": options.user, "item": options.item, "rating": options.rating}
    try:
        check_columns(table, options.source, {f"matrix-completion.{key}": name for key, name in names.items()})
    except UserError as error:
        raise UserError(str(error).replace("data.source", "matrix-completion.source")) from None
    frame = table.select_columns(list(names.values())).to_pandas()
    places, sizes = [], []
    for key, size, setting in (("user", options.rows, "rows"), ("item", options.columns, "columns")):
        column = frame[names[key]].to_numpy()
        if column.dtype.kind == "O":
            words = [str(word) for word in column]
            if not all(word.isdigit() for word in words):
                raise UserError(f"matrix-completion.{key} = {names[key]!r}: holds other values than whole numbers from 0 on")
            column = np.array([int(word) for word in words])
        if column.dtype.kind not in "iu" or column.min() < 0:
            raise UserError(f"matrix-completion.{key} = {names[key]!r}: holds other values than whole numbers from 0 on")
        at = column.astype(np.int64) - (1 if column.min() > 0 else 0)
        if size and at.max() >= size:
            raise UserError(f"matrix-completion.{setting} = {size}, but {names[key]!r} goes up to {column.max()}: set it to 0")
        places.append(at)
        sizes.append(size or int(at.max()) + 1)
    values = frame[names["rating"]].to_numpy()
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise UserError(f"matrix-completion.rating = {names['rating']!r}: holds other values than finite numbers")
    flat = places[0] * sizes[1] + places[1]
    if len(np.unique(flat)) < len(flat):
        found, counts = np.unique(flat, return_counts=True)
        row, column = divmod(int(found[counts > 1][0]), sizes[1])
        raise UserError(
            f"matrix-completion.source = {options.source!r}: {len(flat) - len(found)} ratings repeat a pair of user and item, "
            f"the first one numbers {row} and {column} from 0 on: keep one of each"
        )
    return Observations(places[0], places[1], values.astype(np.float64), (sizes[0], sizes[1]))
