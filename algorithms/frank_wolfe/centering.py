"""Centring for matrix completion, from sums over clients: the mean, or the mean and the
biases of rows and columns.

Without centring, a low-rank matrix that has to explain the level of the ratings has
little left for anything else. The model of an entry is ``rows[i] + columns[j] + scale *
X[i, j]``. The method learns X; ``scale``, the standard deviation of the residuals,
gives the entries of X unit size for any data.

The server asks for four stages (``STAGES``), one after the other. All answers are sums
over a client's observations, so the server only needs their sum over clients. The last
stage is about test observations: the errors of trivial predictors.

Source: Koren, Bell, Volinsky, "Matrix Factorization Techniques for Recommender
Systems", Computer 2009, DOI 10.1109/MC.2009.263 (biases). They are damped, as if
``DAMPING`` more observations of every row and column were at the mean.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_choice
from fedapps.algorithms.frank_wolfe.domain import Array, Float64

CENTERS = ("none", "mean", "bias")
STAGES = ("moments", "sides", "rows", "errors")
PREDICTORS = ("zero", "mean", "rows", "columns", "biases")
DAMPING = 5.0


class Table(NamedTuple):
    """Observed entries ``values`` (m,) at ``rows``, ``columns`` (m,)."""

    rows: NDArray[np.integer[Any]]
    columns: NDArray[np.integer[Any]]
    values: Float64


def answer(
    stage: str,
    estimates: Sequence[Array],
    train: Table,
    test: Table,
    shape: tuple[int, int],
    limits: tuple[float, float],
) -> list[Float64]:
    """Return a client's sums for a stage, in the shapes of :meth:`Centering.shapes`.
    Raises ``ValueError`` for another stage.

    ``estimates``: :meth:`Centering.question`. ``limits``: predictions other than 0 are
    clipped to this range.
    """
    check_choice("stage", stage, STAGES)
    rows, columns, values = train
    if stage == "moments":
        return [np.array([values.sum(), values @ values, len(values)])]
    if stage == "errors":
        return [np.array([*_squared_errors(estimates, test, limits), len(test.values)])]
    rest = values - estimates[0][0] - (estimates[1][columns] if stage == "rows" else 0.0)
    in_rows = np.bincount(rows, rest, shape[0]).astype(np.float64, copy=False)
    if stage == "rows":
        return [in_rows, np.array([rest @ rest])]
    ones = [
        np.bincount(at, minlength=size).astype(np.float64)
        for at, size in zip((rows, columns), shape, strict=True)
    ]
    return [
        in_rows,
        ones[0],
        np.bincount(columns, rest, shape[1]).astype(np.float64, copy=False),
        ones[1],
    ]


def _squared_errors(
    estimates: Sequence[Array], test: Table, limits: tuple[float, float]
) -> list[float]:
    mean, by_row, by_column, row_biases, column_biases = estimates
    of_rows, of_columns, truth = test
    guesses = [mean[0], mean[0] + by_row[of_rows], mean[0] + by_column[of_columns]]
    guesses.append(mean[0] + row_biases[of_rows] + column_biases[of_columns])
    errors = [truth, *(np.clip(guess, *limits) - truth for guess in guesses)]
    return [float(error @ error) for error in errors]


class Centering:
    """The server's half: goes through the stages, adds up the answers, and computes the
    constants of the model and the errors of the predictors.
    """

    def __init__(self, shape: tuple[int, int], kind: str = "bias") -> None:
        check_choice("center", kind, CENTERS)
        self.shape, self.kind = shape, kind
        self._done = 0
        self._mean, self._scale, self._deviation = 0.0, 1.0, 1.0
        # means of rows and columns, less the mean
        self._rows, self._columns = np.zeros(shape[0]), np.zeros(shape[1])
        self._row_biases, self._counts = np.zeros(shape[0]), np.zeros(shape[0])
        self._errors = np.zeros(len(PREDICTORS))

    @property
    def stage(self) -> str:
        """The next stage, or "" when all are answered."""
        return STAGES[self._done] if self._done < len(STAGES) else ""

    def question(self) -> list[Float64]:
        """Return what clients need for the next answer."""
        mean = np.array([self._mean])
        if self.stage == "rows":
            return [mean, self._columns]
        return (
            [mean]
            if self.stage != "errors"
            else [mean, self._rows, self._columns, self._row_biases, self._columns]
        )

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the arrays of an answer."""
        p, q = self.shape
        sizes = {
            "moments": [3],
            "sides": [p, p, q, q],
            "rows": [p, 1],
            "errors": [len(PREDICTORS) + 1],
        }
        return [(size,) for size in sizes[self.stage]]

    def take(self, sums: Sequence[Array]) -> None:
        """Take the sums of the clients' answers. Raises ``ValueError`` if there are no
        observations.
        """
        stage = self.stage
        if stage in ("moments", "errors") and not sums[0][-1] > 0:
            raise ValueError(
                f"centring: the clients have no {'training' if stage == 'moments' else 'test'} "
                "observations"
            )
        if stage == "moments":
            total, squares, count = (float(value) for value in sums[0])
            self._mean = total / count
            self._deviation = math.sqrt(max(squares / count - self._mean**2, 0.0))
        elif stage == "sides":
            self._counts = np.asarray(sums[1], np.float64)
            self._rows, self._columns = sums[0] / (sums[1] + DAMPING), sums[2] / (sums[3] + DAMPING)
        elif stage == "rows":
            n, b = self._counts, sums[0] / (self._counts + DAMPING)
            # sum of (rest - b)^2
            left = float(sums[1][0]) - 2 * float(b @ sums[0]) + float(b @ (n * b))
            self._row_biases, self._scale = b, math.sqrt(max(left, 0.0) / max(float(n.sum()), 1.0))
        else:
            self._errors = np.sqrt(sums[0][:-1] / sums[0][-1])
        self._done += 1

    def constants(self) -> dict[str, Float64]:
        """Return ``rows`` (p,), ``columns`` (q,) and ``scale`` (1,) of the model;
        nothing without centring.
        """
        if self.kind == "none":
            return {}
        biased = self.kind == "bias"
        rows = np.full(self.shape[0], self._mean) + (self._row_biases if biased else 0.0)
        columns = self._columns if biased else np.zeros(self.shape[1])
        scale = (self._scale if biased else self._deviation) or 1.0  # 0: nothing is left to learn
        return {"rows": rows, "columns": columns, "scale": np.array([scale])}

    def metrics(self) -> dict[str, float]:
        """Return the root mean squared test errors of the trivial predictors."""
        return {
            f"test-rmse-of-{name}": float(error)
            for name, error in zip(PREDICTORS, self._errors, strict=True)
        }

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint."""
        return {
            "numbers": np.array([self._done, self._mean, self._scale, self._deviation]),
            "rows": self._rows,
            "columns": self._columns,
            "row-biases": self._row_biases,
            "counts": self._counts,
            "errors": self._errors,
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        done, self._mean, self._scale, self._deviation = (
            float(value) for value in state["numbers"]
        )
        self._done = int(done)
        self._rows, self._columns, self._row_biases = (
            state["rows"],
            state["columns"],
            state["row-biases"],
        )
        self._counts, self._errors = state["counts"], state["errors"]
