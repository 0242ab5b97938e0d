"""What a domain is: a convex compact set, reached through its linear minimisation oracle ``lmo(g) = argmin_{x in D} <g, x>``.

A domain is a small frozen class. Points are arrays of ``domain.shape``; the oracle returns an
:class:`~algorithms.frank_wolfe.atoms.Atom`, and ``unpack`` reads one that came in a message, checked. Ties go to the lowest index,
so that every machine returns the same atom; a zero gradient gives any extreme point, always the same. The classes: ``domains.py``
(arrays of any shape), ``matrix_domains.py``, ``product.py`` (several side by side).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from algorithms.frank_wolfe.atoms import Array, Atom, Float64


class Domain(ABC):
    """A convex compact set of arrays of one ``shape``."""

    shape: tuple[int, ...]
    projects: ClassVar[bool] = True  # whether `project` exists
    num_arrays: int = 1  # that a packed atom has

    @abstractmethod
    def lmo(self, gradient: Any, warm: Atom | None = None) -> Atom:
        """Return an extreme point s with the least ``<gradient, s>``.

        ``warm``: the last atom, from which an iterative oracle starts; others ignore it. Raises ``ValueError`` for a gradient
        of another shape or one that is not finite.
        """

    @abstractmethod
    def unpack(self, arrays: Sequence[Array]) -> Atom:
        """Return the atom that ``pack`` made. ``ValueError`` for anything that is not an extreme point of this domain."""

    @abstractmethod
    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Tell whether x lies in the domain, up to ``tolerance`` times the domain's size. ``ValueError`` for another shape."""

    @property
    @abstractmethod
    def diameter(self) -> float:
        """The largest Euclidean distance of two points."""

    @abstractmethod
    def start(self) -> Float64:
        """Return a point of the domain."""

    def project(self, x: Array) -> Float64:
        """Return the point of the domain that is nearest to x (``projects``: whether there is such a method)."""
        raise ValueError(f"{type(self).__name__} has no projection: use a Frank-Wolfe method")

    def split(self, x: Array) -> list[Array]:
        """Return the arrays that a point consists of: itself, or one a layer in a :class:`Product`."""
        return [x]

    def join(self, arrays: Sequence[Array]) -> Array:
        """Return the point that consists of ``arrays``; undoes :meth:`split`."""
        if len(arrays) != 1:
            raise ValueError(f"{len(arrays)} arrays, but a point of {type(self).__name__} is one")
        return as_point(self, arrays[0])


def as_point(domain: Domain, x: ArrayLike) -> Array:
    """Return ``x`` as an array, or raise ``ValueError`` unless it has the domain's shape."""
    array = np.asarray(x)
    if array.shape != domain.shape:
        raise ValueError(f"an array of shape {array.shape} for {type(domain).__name__} of shape {domain.shape}")
    return array


def as_gradient(domain: Domain, gradient: ArrayLike) -> Array:
    """Return the gradient as an array, or raise ``ValueError`` unless it fits the domain and is finite."""
    g = as_point(domain, gradient)
    # The squared norm is finite only if every entry is, and much faster to get; it can overflow, then every entry is looked at.
    if not math.isfinite(np.vdot(g, g)) and not np.isfinite(g).all():
        raise ValueError(f"the gradient has {int((~np.isfinite(g)).sum())} entries that are not finite")
    return g


def check_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape as a tuple; ``ValueError`` unless its sizes are positive and an int32 can count its entries."""
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    if not sizes or min(sizes) < 1 or math.prod(sizes) >= 2**31:
        raise ValueError(f"shape = {shape}: a domain has one or more positive sizes and fewer than 2^31 entries")
    return sizes


def check_packed(domain: Domain, arrays: Sequence[Array], *expected: tuple[str, int]) -> list[Array]:
    """Return the arrays of a packed atom; ``ValueError`` unless they have the kinds ("i", "f", ...) and lengths ``expected``."""
    found = [(array.dtype.kind, array.shape) for array in map(np.asarray, arrays)]
    if found != [(kind, (length,)) for kind, length in expected]:
        wanted = ", ".join(f"{kind}({length})" for kind, length in expected)
        got = ", ".join(f"{kind}{shape}" for kind, shape in found)
        raise ValueError(f"a packed atom of {type(domain).__name__} {domain.shape} is {wanted}, but this is {got}")
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
        raise ValueError(f"a packed atom of {type(domain).__name__} has entries that are not finite")
    return [np.asarray(array) for array in arrays]
