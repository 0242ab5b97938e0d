"""Objectives of constrained problems, one per client: value and gradient of a smooth
function of one array.

Everything that does not depend on the point is computed once, in the constructor: a run
evaluates millions of gradients of a few microseconds each.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022,
section 5.
"""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.frank_wolfe.domain import Array, Float64


class Objective(Protocol):
    """A smooth function of one array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a point."""

    @property
    def num_examples(self) -> int:
        """The number of samples."""

    def value(self, x: Array) -> float:
        """Return f(x)."""

    def gradient(self, x: Array) -> Any:
        """Return the gradient at x: an array of x's shape, or a
        :class:`SparseGradient`.
        """


class LeastSquares:
    """``||A x - b||^2`` for A (m, d), b (m,), without a factor 1/2 or 1/m."""

    def __init__(self, a: ArrayLike, b: ArrayLike) -> None:
        self.a, self.b = _matrix("A", a), np.array(b, np.float64)
        rows, columns = self.a.shape
        if self.b.shape != (rows,) or not np.isfinite(self.b).all():
            raise ValueError(
                f"b of shape {self.b.shape}: give {rows} finite numbers, one for each row of A"
            )
        self.shape, self.num_examples = (columns,), rows
        self._twice = 2 * self.a.T
        # With more rows than columns the normal equations are cheaper: 2 A'A x - 2 A'b.
        self._normal = (self._twice @ self.a, self._twice @ self.b) if rows > columns else None

    def value(self, x: Array) -> float:
        """Return the squared residual."""
        residual = self.a @ x - self.b
        return float(residual @ residual)

    def gradient(self, x: Array) -> Float64:
        """Return ``2 A'(A x - b)`` (d,)."""
        if self._normal is not None:
            return np.asarray(self._normal[0].dot(x) - self._normal[1])
        return np.asarray(self._twice.dot(self.a.dot(x) - self.b))


class Logistic:
    """The mean cross-entropy of ``softmax(X W)`` for samples X (m, d) and labels y (m,)
    in 0..classes-1; W is (d, classes).

    There is no bias term; a column of ones in X provides one, constrained like every
    other row of W.
    """

    def __init__(self, samples: ArrayLike, labels: ArrayLike, classes: int) -> None:
        self.samples = _matrix("X", samples)
        y = np.asarray(labels)
        if y.shape != (len(self.samples),) or y.dtype.kind not in "iu":
            raise ValueError(
                f"y of shape {y.shape} and type {y.dtype}: give {len(self.samples)} whole numbers, "
                "one for each row of X"
            )
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(
                f"labels {y.min()}..{y.max()}, but there are {classes} classes: labels run from 0 "
                f"to {classes - 1}"
            )
        self.shape, self.num_examples = (self.samples.shape[1], classes), len(y)
        self._own = np.arange(len(y)) * classes + y  # flat positions of the samples' own labels
        self._weighted = np.ascontiguousarray(self.samples.T / len(y))

    def value(self, x: Array) -> float:
        """Return the mean loss in nats."""
        scores = self.samples @ x
        scores -= scores.max(axis=1, keepdims=True)
        return float((np.log(np.exp(scores).sum(axis=1)) - scores.take(self._own)).mean())

    def gradient(self, x: Array) -> Float64:
        """Return ``X'(softmax(X W) - Y) / m`` (d, classes)."""
        scores = self.samples @ x
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores.ravel()[self._own] -= 1
        return np.asarray(self._weighted @ scores)


@dataclass(frozen=True, eq=False)
class SparseGradient:
    """A sparse p x q matrix with ``values`` (m,) at distinct, ascending flat
    ``indices`` (m,); never made dense.

    An operator (``matvec``, ``rmatvec``) for the oracle of the nuclear-norm ball;
    ``starts`` (p + 1,) and ``columns`` (m,) are its compressed rows (CSR).
    """

    values: Array
    indices: NDArray[np.int64]
    starts: NDArray[np.int32]
    columns: NDArray[np.int32]
    shape: tuple[int, int]

    def _matrix(self) -> Any:
        # imported here: SciPy is slow to import, and most runs do not need it
        from scipy.sparse import csr_array

        return csr_array((self.values, self.columns, self.starts), shape=self.shape)

    def matvec(self, v: Array) -> Array:
        """Return G v (p,)."""
        return np.asarray(self._matrix() @ v.astype(self.values.dtype, copy=False))

    def rmatvec(self, u: Array) -> Array:
        """Return G' u (q,)."""
        return np.asarray(self._matrix().T @ u.astype(self.values.dtype, copy=False))

    def add_to(self, x: Array, weight: float) -> None:
        """Add ``weight`` times this matrix to ``x``, in place, touching the non-zero
        entries only.
        """
        if not x.flags.c_contiguous:
            raise ValueError(f"a matrix of shape {x.shape} that is not contiguous: copy it first")
        x.reshape(-1)[self.indices] += weight * self.values

    def inner(self, x: Array) -> float:
        """Return the inner product with a matrix x (p, q)."""
        return float(np.dot(x.reshape(-1)[self.indices].astype(np.float64), self.values))


class MatrixCompletion:
    """The squared error on observed entries, ``sum (X[rows, columns] - values)^2``; X
    is p x q, in any float precision.
    """

    def __init__(
        self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike, shape: tuple[int, int]
    ) -> None:
        places = [np.asarray(rows), np.asarray(columns)]
        observed = np.array(values, np.float64)
        if (
            observed.ndim != 1
            or not len(observed)
            or any(at.shape != observed.shape or at.dtype.kind not in "iu" for at in places)
        ):
            raise ValueError(
                "observations: give rows, columns (whole numbers) and values, three rows of the "
                "same length of 1 or more"
            )
        for name, at, size in zip(("rows", "columns"), places, shape, strict=True):
            if at.min() < 0 or at.max() >= size:
                raise ValueError(
                    f"{name} {at.min()}..{at.max()}, but the matrix has {size}: they run from 0 to "
                    f"{size - 1}"
                )
        if not np.isfinite(observed).all():
            raise ValueError(
                f"{int((~np.isfinite(observed)).sum())} observed values are not finite: leave "
                "these entries out"
            )
        flat = places[0].astype(np.int64) * shape[1] + places[1].astype(np.int64)
        order = np.argsort(flat, kind="stable")
        self._indices = flat[order]
        repeated = np.flatnonzero(np.diff(self._indices) == 0)
        if len(repeated):
            row, column = divmod(int(self._indices[repeated[0]]), shape[1])
            raise ValueError(
                f"{len(repeated)} observations repeat an entry, the first one ({row}, {column}): "
                "keep one of each"
            )
        self._order, self._values = order, observed[order]
        self._columns = (self._indices % shape[1]).astype(np.int32)
        self._starts = np.searchsorted(
            self._indices, np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
        ).astype(np.int32)
        self.shape, self.num_examples = (int(shape[0]), int(shape[1])), len(observed)

    def with_values(self, values: Float64) -> "MatrixCompletion":
        """Return the same entries with other ``values`` (m,), in the constructor's
        order.
        """
        other = copy(self)
        other._values = np.asarray(values, np.float64)[self._order]
        return other

    def residual(self, x: Array) -> Float64:
        """Return ``X - values`` at the observed entries, row by row."""
        return np.asarray(x.reshape(-1)[self._indices] - self._values)

    def value(self, x: Array) -> float:
        """Return the sum of squared errors."""
        residual = self.residual(x)
        return float(residual @ residual)

    def gradient(self, x: Array) -> SparseGradient:
        """Return twice the residual at the observed entries, in x's precision."""
        values = (2 * self.residual(x)).astype(x.dtype, copy=False)
        return SparseGradient(values, self._indices, self._starts, self._columns, self.shape)


class QuadraticAssignment:
    """``trace(A X B' X')``, or its part for some entries (k, l) of B: ``sum B_kl (X' A
    X)_kl``. X is q x q.

    The parts of a partition of B's q^2 entries sum to the whole, for any A.
    """

    def __init__(
        self, a: ArrayLike, b: ArrayLike, entries: Sequence[tuple[int, int]] | None = None
    ) -> None:
        self.a, b = _matrix("A", a), _matrix("B", b)
        q = len(self.a)
        if self.a.shape != (q, q) or b.shape != (q, q):
            raise ValueError(
                f"A of shape {self.a.shape} and B of shape {b.shape}: both must be square and of "
                "the same size"
            )
        if entries is None:
            self.part, self.num_examples = b, q * q
        else:
            places = np.array(entries)
            if places.ndim != 2 or places.shape[1] != 2 or places.dtype.kind not in "iu":
                raise ValueError("entries: give one or more pairs (k, l) of whole numbers")
            if (
                places.min() < 0
                or places.max() >= q
                or len(np.unique(places, axis=0)) < len(places)
            ):
                raise ValueError(
                    f"{len(places)} entries of B in {places.min()}..{places.max()}: must be "
                    f"distinct and in 0..{q - 1}"
                )
            self.part, self.num_examples = np.zeros((q, q)), len(entries)
            self.part[tuple(places.T)] = b[tuple(places.T)]
        self.shape = (q, q)
        self._a_transposed, self._part_transposed = (
            np.ascontiguousarray(self.a.T),
            np.ascontiguousarray(self.part.T),
        )
        # A symmetric A, the usual case, needs two products instead of four.
        self._both = self.part + self._part_transposed if np.array_equal(self.a, self.a.T) else None

    def value(self, x: Array) -> float:
        """Return the cost."""
        return float(np.vdot(x.T @ self.a @ x, self.part))

    def gradient(self, x: Array) -> Float64:
        """Return ``A X B' + A' X B`` (q, q), B being the part's entries."""
        if self._both is not None:
            return np.asarray(self.a.dot(x).dot(self._both))
        return np.asarray(
            self.a.dot(x).dot(self._part_transposed) + self._a_transposed.dot(x).dot(self.part)
        )


def read_qaplib(text: str) -> tuple[Float64, Float64]:
    """Return A and B (q, q) of a QAPLIB ``.dat`` file: q, then the rows of A, then the
    rows of B; line breaks are ignored.
    """
    words = text.split()
    if not words or not re.fullmatch(r"\d{1,6}", words[0]) or int(words[0]) < 1:
        raise ValueError(
            "a QAPLIB file begins with the size, a whole number: this one begins with "
            f"{' '.join(words[:1])!r}"
        )
    q, count = int(words[0]), len(words) - 1
    if count != 2 * q * q:
        raise ValueError(
            f"a QAPLIB file of size {q} has {2 * q * q} numbers (two square matrices) after the "
            f"size: this one has {count}"
        )
    try:
        numbers = np.array(words[1:], np.float64)
    except ValueError as error:
        raise ValueError(f"a QAPLIB file holds numbers only: {error}") from None
    if not np.isfinite(numbers).all():
        raise ValueError("a QAPLIB file holds finite numbers only")
    return numbers[: q * q].reshape(q, q), numbers[q * q :].reshape(q, q)


def _matrix(name: str, values: ArrayLike) -> Float64:
    matrix = np.array(values, np.float64, order="C")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(
            f"{name} of shape {matrix.shape}: must be a matrix with at least one row and column"
        )
    if not np.isfinite(matrix).all():
        raise ValueError(
            f"{name} has {int((~np.isfinite(matrix)).sum())} entries that are not finite"
        )
    return matrix
