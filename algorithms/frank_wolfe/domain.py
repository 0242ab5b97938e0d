"""Base class for domains: convex compact sets with a linear minimisation oracle
``lmo(g) = argmin_{x in D} <g, x>``.

A domain is a small frozen class. Points are arrays of ``domain.shape``; the oracle
returns an :class:`Atom`, and ``unpack`` validates and reads one from a message. Ties go
to the lowest index, so that every machine returns the same atom; a zero gradient gives
a fixed extreme point. The classes: ``vector_domains.py`` (arrays of any shape),
``matrix_domains.py`` and, here, :class:`Product`, with one domain for every layer of a
net.

An :class:`Atom` takes a few numbers however large the point is: one entry, a
permutation, two vectors. It can be added to a point without building its dense array,
multiplied with a gradient, and packed into arrays for a message. The domain unpacks and
validates these (``Domain.unpack``), because messages are untrusted.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapps.algorithms.common.options import check_range

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


class Domain(ABC):
    """A convex compact set of arrays of one ``shape``."""

    shape: tuple[int, ...]
    projects: ClassVar[bool] = True  # whether `project` is implemented
    num_arrays: int = 1  # arrays in a packed atom
    num_layers: int = 1  # arrays of a point: one, or one per factor of a product

    @abstractmethod
    def lmo(self, gradient: Any, warm: Atom | None = None) -> Atom:
        """Return an extreme point s that minimises ``<gradient, s>``.

        ``warm``: the previous atom, from which an iterative oracle starts; others
        ignore it. Raises ``ValueError`` if the gradient has another shape or is not
        finite.
        """

    @abstractmethod
    def unpack(self, arrays: Sequence[Array]) -> Atom:
        """Undo ``Atom.pack``. Raises ``ValueError`` for anything that is not an extreme
        point of this domain.
        """

    @abstractmethod
    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Return whether x is in the domain, up to ``tolerance`` times its size. Raises
        ``ValueError`` for another shape.
        """

    @property
    @abstractmethod
    def diameter(self) -> float:
        """The largest Euclidean distance between two points."""

    def start(self) -> Float64:
        """Return an initial point in the domain: 0, unless a class has another."""
        return np.zeros(self.shape)

    def project(self, x: Array) -> Float64:
        """Return the point of the domain closest to x. Raises ``ValueError`` if the
        domain has no projection (see ``projects``).
        """
        raise ValueError(f"{type(self).__name__} has no projection: use a Frank-Wolfe method")

    def split(self, x: Array) -> list[Array]:
        """Return the arrays of a point: itself, or one per layer in a
        :class:`Product`.
        """
        return [x]

    def join(self, arrays: Sequence[Array]) -> Array:
        """Return the point with these ``arrays``; undoes :meth:`split`."""
        if len(arrays) != 1:
            raise ValueError(f"{len(arrays)} arrays, but a point of {type(self).__name__} is one")
        return as_point(self, arrays[0])


@dataclass(frozen=True)
class Ball(Domain):
    """Base of the domains whose size is one number, ``radius``."""

    shape: tuple[int, ...]
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        check_range("radius", self.radius, 0, open_low=True)


def as_point(domain: Domain, x: ArrayLike) -> Array:
    """Return ``x`` as an array, or raise ``ValueError`` unless it has the domain's
    shape.
    """
    array = np.asarray(x)
    if array.shape != domain.shape:
        raise ValueError(
            f"an array of shape {array.shape} for {type(domain).__name__} of shape {domain.shape}"
        )
    return array


def as_gradient(domain: Domain, gradient: ArrayLike) -> Array:
    """Return the gradient as an array, or raise ``ValueError`` unless it fits the
    domain and is finite.
    """
    g = as_point(domain, gradient)
    # The squared norm is finite only if every entry is, and much faster to compute; it
    # can overflow, so check the entries then.
    if not math.isfinite(np.vdot(g, g)) and not np.isfinite(g).all():
        raise ValueError(
            f"the gradient has {int((~np.isfinite(g)).sum())} entries that are not finite"
        )
    return g


def check_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape as a tuple; raises ``ValueError`` unless its sizes are positive
    and its entries can be indexed by int32.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    if not sizes or min(sizes) < 1 or math.prod(sizes) >= 2**31:
        raise ValueError(
            f"shape = {shape}: a domain has one or more positive sizes and fewer than 2^31 entries"
        )
    return sizes


def check_matrix(domain: Domain, square: bool = False) -> None:
    """Raise ``ValueError`` unless the domain is one of matrices, ``square`` ones."""
    sizes = check_shape(domain.shape)
    if len(sizes) != 2 or (square and sizes[0] != sizes[1]):
        wanted = "(q, q)" if square else "(rows, columns)"
        raise ValueError(f"shape = {domain.shape}: {type(domain).__name__} needs {wanted}")


def check_packed(
    domain: Domain, arrays: Sequence[Array], *expected: tuple[str, int]
) -> list[Array]:
    """Return the arrays of a packed atom; raises ``ValueError`` unless they have the
    ``expected`` kinds ("i", "f", ...) and lengths.
    """
    received = [(array.dtype.kind, array.shape) for array in map(np.asarray, arrays)]
    if received != [(kind, (length,)) for kind, length in expected]:
        wanted = ", ".join(f"{kind}({length})" for kind, length in expected)
        got = ", ".join(f"{kind}{shape}" for kind, shape in received)
        raise ValueError(
            f"a packed atom of {type(domain).__name__} {domain.shape} is {wanted}, but this is "
            f"{got}"
        )
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
        raise ValueError(
            f"a packed atom of {type(domain).__name__} has entries that are not finite"
        )
    return [np.asarray(array) for array in arrays]


@dataclass(frozen=True)
class Product(Domain):
    """Product of ``domains``, one per layer of a net. A point is one row: the flattened
    arrays of the layers, concatenated.

    ``split`` and ``join`` convert between this row and the layers' arrays. Atom: one
    atom per factor.
    """

    domains: tuple[Domain, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", tuple(self.domains))
        if not self.domains:
            raise ValueError("a Product needs at least one domain")
        check_shape(self.shape)

    @cached_property
    def slices(self) -> list[slice]:
        """The slice of a point that belongs to each domain."""
        ends = np.cumsum([math.prod(domain.shape) for domain in self.domains]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(total,)."""
        return (self.slices[-1].stop,)

    @cached_property
    def num_arrays(self) -> int:  # type: ignore[override]
        """The sum over the factors."""
        return sum(domain.num_arrays for domain in self.domains)

    @property
    def num_layers(self) -> int:  # type: ignore[override]
        """The number of factors."""
        return len(self.domains)

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether every factor has a projection."""
        return all(domain.projects for domain in self.domains)

    def split(self, x: Array) -> list[Array]:
        """Return the layers' arrays, as views."""
        row = as_point(self, x)
        return [
            row[piece].reshape(domain.shape)
            for domain, piece in zip(self.domains, self.slices, strict=True)
        ]

    def join(self, arrays: Sequence[Array]) -> Array:
        """Return the row that holds the layers' arrays."""
        if len(arrays) != len(self.domains):
            raise ValueError(f"{len(arrays)} arrays for a Product of {len(self.domains)} domains")
        return np.concatenate(
            [as_point(domain, x).ravel() for domain, x in zip(self.domains, arrays, strict=True)]
        )

    def lmo(self, gradient: Any, warm: Atom | None = None) -> Parts:
        """Return an atom of every factor."""
        before = warm.atoms if isinstance(warm, Parts) else [None] * len(self.domains)
        parts = zip(self.domains, self.split(gradient), before, strict=True)
        return Parts([domain.lmo(g, last) for domain, g, last in parts], self.slices)

    def unpack(self, arrays: Sequence[Array]) -> Parts:
        """Unpack an atom of every factor."""
        if len(arrays) != self.num_arrays:
            raise ValueError(
                f"a packed atom of {len(arrays)} arrays for a Product whose atoms have "
                f"{self.num_arrays}"
            )
        rest = iter(arrays)
        return Parts(
            [
                domain.unpack([next(rest) for _ in range(domain.num_arrays)])
                for domain in self.domains
            ],
            self.slices,
        )

    def project(self, x: Array) -> Float64:
        """Project onto every factor."""
        return self.join(
            [domain.project(part) for domain, part in zip(self.domains, self.split(x), strict=True)]
        )

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check every factor."""
        return all(
            domain.contains(part, tolerance)
            for domain, part in zip(self.domains, self.split(x), strict=True)
        )

    @property
    def diameter(self) -> float:
        """The root of the sum of the factors' squared diameters."""
        return math.hypot(*(domain.diameter for domain in self.domains))

    def start(self) -> Float64:
        """Return the initial points of the factors."""
        return self.join([domain.start() for domain in self.domains])
