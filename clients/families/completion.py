"""A client's part in matrix completion: squared error on its observations, sums for the
centring, errors on test observations.

Every message holds the server's constants (``algorithms/frank_wolfe/centering.py``)
after the point; if there are none, the observations are used unchanged.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.frank_wolfe.centering import Table, answer
from fedapps.algorithms.frank_wolfe.domain import Array, Float64
from fedapps.algorithms.frank_wolfe.objectives import MatrixCompletion, SparseGradient

ANY = (-math.inf, math.inf)


class CompletionProblem:
    """``f_i(X) = sum (X - z)^2`` over the training observations, z being the
    observations centred and scaled by the constants.

    ``clip``: predictions are clipped to the range of the client's training observations
    before they are scored.
    """

    def __init__(
        self, train: Table, test: Table, shape: tuple[int, int], clip: bool = True
    ) -> None:
        self.train, self.test, self.shape = train, test, shape
        self.limits = (float(train.values.min()), float(train.values.max())) if clip else ANY
        self.num_examples = len(train.values)
        self._plain = self._objective = MatrixCompletion(
            train.rows, train.columns, train.values, shape
        )
        self._constants: Sequence[Array] = ()

    def given(self, constants: Sequence[Array]) -> "CompletionProblem":
        """Return the problem with these constants: ``rows`` (p,), ``columns`` (q,),
        ``scale`` (1,), or none.
        """
        sizes = [array.shape for array in constants]
        if constants and sizes != [(self.shape[0],), (self.shape[1],), (1,)]:
            raise ValueError(
                f"constants of shapes {sizes}: rows, columns and a scale of a {self.shape} matrix "
                "are expected"
            )
        if not (
            len(constants) == len(self._constants)
            and all(map(np.array_equal, constants, self._constants))
        ):
            self._constants = [array.copy() for array in constants]
            self._objective = self._plain
            if constants:
                rows, columns, values = self.train
                left = (values - self._offsets(rows, columns)) / float(constants[2][0])
                self._objective = self._plain.with_values(left)
        return self

    def answer(self, stage: str, estimates: Sequence[Array]) -> list[Float64]:
        """Return the sums that a stage of the centring asks for."""
        return answer(stage, estimates, self.train, self.test, self.shape, self.limits)

    def value(self, x: Array) -> float:
        """Return f_i(x)."""
        return self._objective.value(x)

    def gradient(self, x: Array) -> SparseGradient:
        """Return the gradient."""
        return self._objective.gradient(x)

    def batch_gradient(self, x: Array, rows: NDArray[np.int64]) -> Array:
        """Raise ``ValueError``: a mini-batch would touch a few entries only."""
        raise ValueError("matrix completion has no samples to draw: set batch-size = 0")

    def score(self, x: Array) -> Mapping[str, float]:
        """Return the sums of squared errors on training and test observations, in the
        units of the data, and the numbers of these, which differ between clients.
        """
        return {
            "squared-error": self._error(x, self.train),
            "observations": float(len(self.train.values)),
            "test-squared-error": self._error(x, self.test),
            "test-observations": float(len(self.test.values)),
        }

    def _error(self, x: Array, table: Table) -> float:
        guess = x[table.rows, table.columns].astype(np.float64)
        if self._constants:
            guess = self._offsets(table.rows, table.columns) + float(self._constants[2][0]) * guess
        error = np.clip(guess, *self.limits) - table.values
        return float(error @ error)

    def _offsets(self, rows: Array, columns: Array) -> Float64:
        return np.asarray(self._constants[0][rows] + self._constants[1][columns], np.float64)
