"""Domains of matrices: per-column l1 balls, nuclear-norm ball, spectrahedron, Birkhoff
polytope.

The oracles of the nuclear-norm ball and the spectrahedron need one singular vector pair
or eigenvector, found with Lanczos' method instead of a full decomposition. They take
the gradient as an array or as an operator, which is never made dense.

Sources: Jaggi, "Revisiting Frank-Wolfe: Projection-Free Sparse Convex Optimization",
ICML 2013, section 4; Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm",
FL-NeurIPS 2022, section 5.

Lanczos' method finds the smallest eigenvalue of a large symmetric matrix given by its
matrix-vector products. Full orthogonalisation, no restarts: a few dozen products
suffice for the accuracy of a Frank-Wolfe step, fewer with a warm start.

Source: Golub, Van Loan, "Matrix Computations", 4th edition, Johns Hopkins University
Press 2013, section 10.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.mirror import project_simplex
from fedapps.algorithms.common.options import check_range
from fedapps.algorithms.frank_wolfe.domain import (
    Array,
    Atom,
    Ball,
    Domain,
    Entries,
    Float64,
    Permutation,
    RankOne,
    SymmetricRankOne,
    as_gradient,
    as_point,
    check_matrix,
    check_packed,
)
from fedapps.algorithms.frank_wolfe.vector_domains import project_l1

CHECK_EVERY = 3  # steps between two convergence checks, each of which solves the small eigenproblem


@lru_cache(maxsize=32)
def generic_vector(size: int) -> Float64:
    """Return a fixed pseudo-random unit vector: in general no eigenvector is orthogonal
    to it, and no entry is 0.
    """
    vector = np.random.default_rng(size).normal(size=size)
    vector /= np.linalg.norm(vector)
    vector.setflags(write=False)
    return vector


def smallest_eigenvector(
    product: Callable[[Float64], NDArray[Any]], start: Float64, tolerance: float, max_steps: int
) -> tuple[float, Float64, int]:
    """Return the smallest eigenvalue theta of a symmetric S (n, n), its unit
    eigenvector y (n,) and the number of products.

    ``product(v)`` returns ``S v``. Stops once ``||S y - theta y|| <= tolerance *
    |largest Ritz value|``, or after ``max_steps`` products. Raises ``ValueError`` if a
    product is not finite.
    """
    size = len(start)
    steps = min(max_steps, size)
    basis = np.empty((steps, size))
    projected = np.zeros((steps, steps))  # S in the basis: tridiagonal
    basis[0] = start / np.linalg.norm(start)
    for k in range(steps):
        image = np.asarray(product(basis[k]), np.float64)
        along = basis[: k + 1] @ image
        if not np.isfinite(along).all():
            raise ValueError("the gradient has entries that are not finite")
        projected[k, k] = along[k]
        # against all, not only the last two: rounding would bring back converged
        # vectors
        image -= along @ basis[: k + 1]
        rest = float(np.linalg.norm(image))
        scale = float(np.abs(projected[: k + 1, : k + 1]).max())
        # the second: the Krylov space of the start is exhausted
        last = k + 1 == steps or rest <= 1e-14 * scale
        if last or (k + 1) % CHECK_EVERY == 0:
            values, vectors = np.linalg.eigh(projected[: k + 1, : k + 1])
            if last or rest * abs(vectors[k, 0]) <= tolerance * np.abs(values).max():
                best = vectors[:, 0] @ basis[: k + 1]
                return float(values[0]), best / np.linalg.norm(best), k + 1
        projected[k, k + 1] = projected[k + 1, k] = rest
        basis[k + 1] = image / rest
    raise AssertionError("unreachable")


# Weight of the generic vector that is added to the last atom (weight 1) to start an
# iteration: the last atom alone could be orthogonal to the wanted vector, and would
# remain so.
FRESH = 0.3
UNIT_TOLERANCE = 1e-4  # how far the norm of a received vector, in float32 or less, may be from 1


class Operator(Protocol):
    """A p x q matrix given by its matrix-vector products
    (``scipy.sparse.linalg.LinearOperator`` is one).
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(p, q)."""

    def matvec(self, v: Array) -> Array:
        """Return G v (p,) for v (q,)."""

    def rmatvec(self, u: Array) -> Array:
        """Return G' u (q,) for u (p,)."""


@dataclass(frozen=True)
class DenseOperator:
    """An array as an operator; products are computed in its own precision."""

    values: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(p, q)."""
        return self.values.shape[0], self.values.shape[1]

    def matvec(self, v: Array) -> Array:
        """Return G v."""
        return np.asarray(self.values @ v.astype(self.values.dtype, copy=False))

    def rmatvec(self, u: Array) -> Array:
        """Return G' u."""
        return np.asarray(u.astype(self.values.dtype, copy=False) @ self.values)


def as_operator(domain: Domain, gradient: Any) -> Operator:
    """Return the gradient as an operator; raises ``ValueError`` unless it has the
    domain's shape.
    """
    operator: Operator = (
        gradient if hasattr(gradient, "matvec") else DenseOperator(_floating(gradient))
    )
    if tuple(operator.shape) != domain.shape:
        raise ValueError(
            f"a gradient of shape {tuple(operator.shape)} for {type(domain).__name__} of shape "
            f"{domain.shape}"
        )
    return operator


def _floating(gradient: Any) -> NDArray[np.floating[Any]]:
    array = np.asarray(gradient)
    if array.ndim != 2:
        raise ValueError(f"a gradient of shape {array.shape}: must be a matrix")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _begin(size: int, last: Array | None) -> Float64:
    fresh = generic_vector(size)
    return fresh if last is None else last + FRESH * fresh


def _scale(probe: Array) -> float:
    """Return the largest entry of ``probe``, the product of a matrix with a generic
    vector: 0 only for a zero matrix.
    """
    scale = float(np.abs(probe).max())
    if not math.isfinite(scale):
        raise ValueError("the gradient has entries that are not finite")
    return scale


def first_axis(size: int) -> Float64:
    """Return the unit vector along the first axis."""
    vector = np.zeros(size)
    vector[0] = 1.0
    return vector


def _unit(domain: Domain, *vectors: Array) -> None:
    for vector in vectors:
        norm = float(np.linalg.norm(vector))
        if not abs(norm - 1) <= UNIT_TOLERANCE:
            raise ValueError(
                f"a packed atom of {type(domain).__name__} has a vector of norm {norm:g}: it must "
                "be 1"
            )


@dataclass(frozen=True)
class GroupL1(Ball):
    """d x L matrices with ``sum |column| <= radius`` in every column (a class, a
    group). Atom: one entry per column.
    """

    num_arrays = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_matrix(self)

    def lmo(self, gradient: Any, warm: Atom | None = None) -> Entries:
        """Return in every column the entry with the largest ``|gradient|``, with the
        opposite sign.
        """
        g = as_gradient(self, gradient)
        return self._entries(np.abs(g).argmax(axis=0), g)

    def _entries(self, rows: NDArray[np.integer[Any]], g: Array) -> Entries:
        flat = rows * self.shape[1] + np.arange(self.shape[1])
        return Entries(
            flat.astype(np.int32), np.where(g.flat[flat] < 0, self.radius, -self.radius), self.shape
        )

    def unpack(self, arrays: Sequence[Array]) -> Entries:
        """Read one index and one value of magnitude ``radius`` per column."""
        d, columns = self.shape
        flat, values = check_packed(self, arrays, ("i", columns), ("f", columns))
        if (
            flat.min() < 0
            or flat.max() >= d * columns
            or (flat % columns != np.arange(columns)).any()
        ):
            raise ValueError(
                f"a packed atom of GroupL1: give one index below {d * columns} in each of "
                f"{columns} columns, in order"
            )
        if not np.allclose(np.abs(values), self.radius, rtol=1e-9, atol=0):
            raise ValueError(
                f"a packed atom of GroupL1 has other values than plus or minus {self.radius:g}"
            )
        return Entries(flat.astype(np.int32), values.astype(np.float64), self.shape)

    def project(self, x: Array) -> Float64:
        """Project every column."""
        return np.stack([project_l1(column, self.radius) for column in as_point(self, x).T], axis=1)

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the l1 norm of every column."""
        return bool(
            (
                np.abs(as_point(self, x)).sum(axis=0, dtype=np.float64)
                <= self.radius * (1 + tolerance)
            ).all()
        )

    @property
    def diameter(self) -> float:
        """The distance between opposite vertices."""
        return 2 * self.radius * math.sqrt(self.shape[1])


@dataclass(frozen=True)
class Spectral(Ball):
    """Base of the domains with Lanczos' method as oracle. ``tolerance``: relative
    residual of the singular pair or eigenvector at which it stops; ``max_steps`` bounds
    its length.
    """

    tolerance: float = 0.01
    max_steps: int = 100
    square: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_matrix(self, self.square)
        check_range("tolerance", self.tolerance, 0, 1)
        check_range("max_steps", self.max_steps, 1)


@dataclass(frozen=True)
class NuclearBall(Spectral):
    """p x q matrices whose singular values sum to at most ``radius``. Atom: ``-radius u
    v'``, p + q numbers.
    """

    num_arrays = 2

    def lmo(self, gradient: Any, warm: Atom | None = None) -> RankOne:
        """Return ``-radius u v'`` with the top singular pair of the gradient (array or
        operator), in the gradient's precision.

        Works on the smaller of G G' and G' G: ``||G' u||`` is then at least the square
        root of the eigenvalue found.
        """
        g = as_operator(self, gradient)
        p, q = self.shape
        there, back = (g.rmatvec, g.matvec) if p <= q else (g.matvec, g.rmatvec)
        probe = np.asarray(there(generic_vector(min(p, q))))
        scale = _scale(probe)
        if scale == 0:
            u, v = first_axis(p), first_axis(q)
        else:
            last = (
                None
                if not isinstance(warm, RankOne) or warm.shape != self.shape
                else (warm.u if p <= q else warm.v)
            )

            def product(vector: Float64) -> Float64:
                image = np.asarray(there(vector), np.float64) / scale
                norm = float(np.linalg.norm(image)) or 1.0
                return np.asarray(back(image / norm), np.float64) * (-norm / scale)

            _, near, _ = smallest_eigenvector(
                product, _begin(min(p, q), last), self.tolerance, self.max_steps
            )
            far = np.asarray(there(near), np.float64) / scale
            far /= np.linalg.norm(far)
            u, v = (near, far) if p <= q else (far, near)
        # a product with a float64 vector may be float64 although the entries are not
        kind = getattr(g, "dtype", probe.dtype)
        return RankOne(u.astype(kind), v.astype(kind), -self.radius)

    def unpack(self, arrays: Sequence[Array]) -> RankOne:
        """Read two unit vectors."""
        u, v = check_packed(self, arrays, ("f", self.shape[0]), ("f", self.shape[1]))
        _unit(self, u, v)
        return RankOne(u, v, -self.radius)

    def project(self, x: Array) -> Float64:
        """Project the singular values; needs the full decomposition that Frank-Wolfe
        avoids.
        """
        u, sizes, vt = np.linalg.svd(np.asarray(as_point(self, x), np.float64), full_matrices=False)
        return np.asarray((u * project_l1(sizes, self.radius)) @ vt)

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the nuclear norm; as slow as the projection."""
        point = np.asarray(as_point(self, x), np.float64)
        return bool(
            np.isfinite(point).all()
            and np.linalg.norm(point, "nuc") <= self.radius * (1 + tolerance)
        )

    @property
    def diameter(self) -> float:
        """The distance between opposite atoms."""
        return 2 * self.radius


@dataclass(frozen=True)
class Spectrahedron(Spectral):
    """Positive semidefinite q x q matrices with trace ``radius``. Atom: ``radius v
    v'``, q numbers.
    """

    radius: float = 1.0
    tolerance: float = 1e-3
    max_steps: int = 200
    square = True

    def lmo(self, gradient: Any, warm: Atom | None = None) -> SymmetricRankOne:
        """Return ``radius v v'``, v being the eigenvector of the smallest eigenvalue of
        the gradient's symmetric part.
        """
        g = as_operator(self, gradient)
        q = self.shape[0]
        last = warm.v if isinstance(warm, RankOne) and warm.shape == self.shape else None
        scale = 1.0

        def product(vector: Float64) -> Float64:
            return (
                np.asarray(g.matvec(vector), np.float64) / scale
                + np.asarray(g.rmatvec(vector), np.float64) / scale
            ) / 2

        scale = _scale(probe := product(generic_vector(q))) or 1.0
        v = (
            smallest_eigenvector(product, _begin(q, last), self.tolerance, self.max_steps)[1]
            if probe.any()
            else first_axis(q)
        )
        return self._atom(v.astype(np.asarray(g.matvec(v)).dtype))

    def _atom(self, v: Array) -> SymmetricRankOne:
        return SymmetricRankOne(v, v, self.radius)

    def unpack(self, arrays: Sequence[Array]) -> SymmetricRankOne:
        """Read a unit vector."""
        (v,) = check_packed(self, arrays, ("f", self.shape[0]))
        _unit(self, v)
        return self._atom(v)

    def project(self, x: Array) -> Float64:
        """Project the eigenvalues of the symmetric part."""
        point = np.asarray(as_point(self, x), np.float64)
        values, vectors = np.linalg.eigh((point + point.T) / 2)
        return np.asarray(
            (vectors * (self.radius * project_simplex(values / self.radius))) @ vectors.T
        )

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check symmetry, trace and the smallest eigenvalue."""
        point, slack = np.asarray(as_point(self, x), np.float64), tolerance * self.radius
        symmetric = bool(np.isfinite(point).all() and np.abs(point - point.T).max() <= slack)
        return symmetric and bool(
            abs(np.trace(point) - self.radius) <= slack and np.linalg.eigvalsh(point)[0] >= -slack
        )

    @property
    def diameter(self) -> float:
        """The distance between orthogonal atoms."""
        return math.sqrt(2) * self.radius if self.shape[0] > 1 else 0.0

    def start(self) -> Float64:
        """Return the centre, a multiple of the identity."""
        return np.eye(self.shape[0]) * (self.radius / self.shape[0])


@dataclass(frozen=True)
class Birkhoff(Domain):
    """Doubly stochastic q x q matrices: non-negative, rows and columns sum to 1. Atom:
    a permutation, q numbers.
    """

    shape: tuple[int, int]
    projects = False

    def __post_init__(self) -> None:
        check_matrix(self, square=True)

    def lmo(self, gradient: Any, warm: Atom | None = None) -> Permutation:
        """Return the optimal assignment of columns to rows."""
        # imported here: SciPy is slow to import, and most runs do not need it
        from scipy.optimize import linear_sum_assignment

        return Permutation(linear_sum_assignment(as_gradient(self, gradient))[1].astype(np.int32))

    def unpack(self, arrays: Sequence[Array]) -> Permutation:
        """Read a permutation."""
        (columns,) = check_packed(self, arrays, ("i", self.shape[0]))
        if not np.array_equal(np.sort(columns), np.arange(self.shape[0])):
            raise ValueError(
                f"a packed atom of Birkhoff is no permutation of 0..{self.shape[0] - 1}"
            )
        return Permutation(columns.astype(np.int32))

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the smallest entry and all row and column sums."""
        point = np.asarray(as_point(self, x), np.float64)
        sums = np.concatenate([point.sum(axis=0), point.sum(axis=1)])
        return bool(point.min() >= -tolerance and np.abs(sums - 1).max() <= tolerance)

    @property
    def diameter(self) -> float:
        """The distance between two permutations that agree nowhere."""
        return math.sqrt(2 * self.shape[0]) if self.shape[0] > 1 else 0.0

    def start(self) -> Float64:
        """Return the centre, the uniform matrix."""
        return np.full(self.shape, 1 / self.shape[0])
