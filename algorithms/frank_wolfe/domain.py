"""Base class for domains: convex compact sets with a linear minimisation oracle
``lmo(g) = argmin_{x in D} <g, x>``.

A domain is a small frozen class. Points are arrays of ``domain.shape``; the oracle
returns an :class:`~fedapps.algorithms.frank_wolfe.atoms.Atom`, and ``unpack`` validates
and reads one from a message. Ties go to the lowest index, so that every machine returns
the same atom; a zero gradient gives a fixed extreme point. The classes:
``vector_domains.py`` (arrays of any shape), ``matrix_domains.py``,
``product_domain.py`` (products of domains).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedapps.algorithms.common.options import check_range
from fedapps.algorithms.frank_wolfe.atoms import Array, Atom, Float64


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
