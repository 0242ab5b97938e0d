"""Atoms: extreme points of a domain, as returned by a linear minimisation oracle and as
sent in messages.

An atom takes a few numbers however large the point is: one entry, a permutation, two
vectors. It can be added to a point without building its dense array, multiplied with a
gradient, and packed into arrays for a message. The domain unpacks and validates these
(``Domain.unpack``), because messages are untrusted.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float64 = NDArray[np.float64]


@cache
def _rank_one_update(dtype: np.dtype[Any]) -> Any:
    """Return BLAS's rank-one update for ``dtype``: one pass over the memory (np.outer
    would build the matrix first).
    """
    # imported here: SciPy is slow to import, and most runs do not need it
    from scipy.linalg import blas

    return {np.dtype(np.float32): blas.sger, np.dtype(np.float64): blas.dger}.get(dtype)


class Atom(ABC):
    """An extreme point of a domain."""

    shape: tuple[int, ...]

    @abstractmethod
    def add_to(self, x: Array, weight: float) -> None:
        """Add ``weight`` times this point to ``x``, in place, touching the non-zero
        entries only.
        """

    @abstractmethod
    def inner(self, gradient: Any) -> float:
        """Return the inner product with a gradient of the same shape."""

    @abstractmethod
    def pack(self) -> list[Array]:
        """Return the arrays to send; :meth:`Domain.unpack` reads them."""

    def dense(self) -> Float64:
        """Return the point as an array of its full shape."""
        point = np.zeros(self.shape)
        self.add_to(point, 1.0)
        return point

    @property
    def num_bytes(self) -> int:
        """The total size of the packed arrays in bytes."""
        return sum(array.nbytes for array in self.pack())


@dataclass(frozen=True, slots=True)
class Entry(Atom):
    """A point with one non-zero entry, ``value`` at the flat ``index``: 12 bytes
    whatever the shape.
    """

    index: int
    value: float
    shape: tuple[int, ...]

    def add_to(self, x: Array, weight: float) -> None:
        """Add to one entry."""
        x.flat[self.index] += weight * self.value

    def inner(self, gradient: Any) -> float:
        """Read one entry."""
        return float(gradient.flat[self.index]) * self.value

    def pack(self) -> list[Array]:
        """Return the index as int32 (1,) and the value as float64 (1,)."""
        return [np.array([self.index], np.int32), np.array([self.value])]


@dataclass(frozen=True, slots=True, eq=False)
class Entries(Atom):
    """A point with few non-zero entries: ``values`` (k,) at the distinct flat
    ``indices`` (k,).
    """

    indices: NDArray[np.int32]
    values: Float64
    shape: tuple[int, ...]

    def add_to(self, x: Array, weight: float) -> None:
        """Add to k entries."""
        x.flat[self.indices] += weight * self.values

    def inner(self, gradient: Any) -> float:
        """Read k entries."""
        return float(gradient.flat[self.indices] @ self.values)

    def pack(self) -> list[Array]:
        """Return the indices as int32 (k,) and the values as float64 (k,)."""
        return [self.indices, self.values]


@dataclass(frozen=True, slots=True, eq=False)
class DensePoint(Atom):
    """A point without structure: all of its ``values`` are sent."""

    values: Array

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The values' shape."""
        return self.values.shape

    def add_to(self, x: Array, weight: float) -> None:
        """Add to every entry."""
        x += weight * self.values

    def inner(self, gradient: Any) -> float:
        """Return the inner product with a gradient of the same shape."""
        return float(np.vdot(self.values, gradient))

    def pack(self) -> list[Array]:
        """Return the values."""
        return [self.values]


@dataclass(frozen=True, slots=True, eq=False)
class RankOne(Atom):
    """The p x q matrix ``scale * u v'`` with unit vectors ``u`` (p,) and ``v`` (q,): p
    + q numbers; the scale is the domain's.
    """

    u: Array
    v: Array
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(p, q)."""
        return len(self.u), len(self.v)

    def add_to(self, x: Array, weight: float) -> None:
        """Add to every entry, in one pass where ``x`` is contiguous."""
        update = _rank_one_update(x.dtype)
        if update and x.flags.c_contiguous:
            update(weight * self.scale, self.v, self.u, a=x.T, overwrite_a=1)
        else:
            x += np.outer(weight * self.scale * self.u, self.v)

    def inner(self, gradient: Any) -> float:
        """Return ``scale * u' G v`` for an array or an operator with ``matvec``."""
        image = gradient.matvec(self.v) if hasattr(gradient, "matvec") else gradient @ self.v
        return self.scale * float(self.u @ image)

    def pack(self) -> list[Array]:
        """Return u and v."""
        return [self.u, self.v]


class SymmetricRankOne(RankOne):
    """The matrix ``scale * v v'``: v is sent once."""

    def pack(self) -> list[Array]:
        """Return v."""
        return [self.v]


@dataclass(frozen=True, slots=True, eq=False)
class Permutation(Atom):
    """The permutation matrix with ones at ``[i, columns[i]]``, ``columns`` (q,)
    int32.
    """

    columns: NDArray[np.int32]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(q, q)."""
        return len(self.columns), len(self.columns)

    def add_to(self, x: Array, weight: float) -> None:
        """Add to q entries."""
        x[np.arange(len(self.columns)), self.columns] += weight

    def inner(self, gradient: Any) -> float:
        """Read q entries."""
        return float(gradient[np.arange(len(self.columns)), self.columns].sum())

    def pack(self) -> list[Array]:
        """Return the columns."""
        return [self.columns]


@dataclass(frozen=True, slots=True, eq=False)
class Parts(Atom):
    """Atom of a product domain: one atom per factor; a point is one row that
    concatenates those of the factors.
    """

    atoms: Sequence[Atom]
    slices: Sequence[slice]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(total,)."""
        return (self.slices[-1].stop,)

    def add_to(self, x: Array, weight: float) -> None:
        """Add every part to its piece of ``x``."""
        for atom, piece in zip(self.atoms, self.slices, strict=True):
            # a slice of a row is contiguous, so the reshaped array is a view
            atom.add_to(x[piece].reshape(atom.shape), weight)

    def inner(self, gradient: Any) -> float:
        """Return the sum over the parts."""
        pairs = zip(self.atoms, self.slices, strict=True)
        return sum(atom.inner(gradient[piece].reshape(atom.shape)) for atom, piece in pairs)

    def pack(self) -> list[Array]:
        """Return the concatenated lists of the parts' arrays."""
        return [array for atom in self.atoms for array in atom.pack()]
