"""Domains of arrays of any shape: l1 ball and l2 ball.

Sources: oracles: Jaggi, "Revisiting Frank-Wolfe: Projection-Free Sparse Convex
Optimization", ICML 2013, section 4. Projections: Duchi, Shalev-Shwartz, Singer,
Chandra, "Efficient Projections onto the l1-Ball for Learning in High Dimensions", ICML
2008, DOI 10.1145/1390156.1390191.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapps.algorithms.common.mirror import project_simplex
from fedapps.algorithms.frank_wolfe.domain import (
    Array,
    Atom,
    Ball,
    DensePoint,
    Entry,
    Float64,
    as_gradient,
    as_point,
    check_packed,
)


def project_l1(x: Array, radius: float) -> Float64:
    """Return the projection of x (any shape) onto ``sum |x| <= radius``: the magnitudes
    projected on the simplex, with x's signs.
    """
    point = np.array(x, np.float64)
    sizes = np.abs(point).ravel()
    if sizes.sum() <= radius:
        return point
    return np.asarray(
        np.copysign(radius * project_simplex(sizes / radius).reshape(point.shape), point)
    )


@dataclass(frozen=True)
class L1Ball(Ball):
    """``sum |x| <= radius``. Atom: one entry of magnitude ``radius``, 12 bytes."""

    num_arrays = 2

    def lmo(self, gradient: Any, warm: Atom | None = None) -> Entry:
        """Return the entry with the largest ``|gradient|``, with the opposite sign."""
        g = as_point(self, gradient)
        index = int(np.abs(g).argmax())
        slope = float(g.flat[index])
        # argmax returns NaN before any number and inf before finite numbers
        if not math.isfinite(slope):
            as_gradient(self, g)
        return Entry(index, self.radius if slope < 0 else -self.radius, self.shape)

    def unpack(self, arrays: Sequence[Array]) -> Entry:
        """Read an index and a value of magnitude ``radius``."""
        packed = check_packed(self, arrays, ("i", 1), ("f", 1))
        index, value = int(packed[0][0]), float(packed[1][0])
        if not 0 <= index < math.prod(self.shape):
            raise ValueError(
                f"a packed atom names entry {index} of an L1Ball of shape {self.shape}"
            )
        if not math.isclose(abs(value), self.radius):
            raise ValueError(
                f"a packed atom has the value {value:g}: an extreme point has "
                f"{self.radius:g} or {-self.radius:g}"
            )
        return Entry(index, value, self.shape)

    def project(self, x: Array) -> Float64:
        """Soft-threshold all entries by the same amount."""
        return project_l1(as_point(self, x), self.radius)

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the l1 norm."""
        return bool(
            np.abs(as_point(self, x)).sum(dtype=np.float64) <= self.radius * (1 + tolerance)
        )

    @property
    def diameter(self) -> float:
        """From a vertex to its opposite."""
        return 2 * self.radius


@dataclass(frozen=True)
class L2Ball(Ball):
    """``||x|| <= radius`` (Frobenius norm for more than one axis). Atom: a point on the
    sphere, dense.
    """

    def lmo(self, gradient: Any, warm: Atom | None = None) -> DensePoint:
        """Return ``-radius g / ||g||``, or a point on the first axis if g = 0."""
        g = as_gradient(self, gradient)
        largest = float(np.abs(g).max())
        if largest == 0:
            point = np.zeros(self.shape)
            point.flat[0] = -self.radius
            return DensePoint(point)
        # so that the squares neither overflow nor underflow
        scaled = np.asarray(g, np.float64) / largest
        return DensePoint(np.asarray(scaled * (-self.radius / np.linalg.norm(scaled.ravel()))))

    def unpack(self, arrays: Sequence[Array]) -> DensePoint:
        """Read a point on the sphere."""
        values = [
            np.asarray(array).reshape(-1) if np.shape(array) == self.shape else array
            for array in arrays
        ]
        (flat,) = check_packed(self, values, ("f", math.prod(self.shape)))
        if not math.isclose(np.linalg.norm(flat), self.radius, rel_tol=1e-6):
            raise ValueError(
                f"a packed atom has the norm {np.linalg.norm(flat):g}: an extreme point has "
                f"{self.radius:g}"
            )
        return DensePoint(flat.reshape(self.shape))

    def project(self, x: Array) -> Float64:
        """Scale x down to the radius."""
        point = np.array(as_point(self, x), np.float64)
        norm = float(np.linalg.norm(point.ravel()))
        return point if norm <= self.radius else np.asarray(point * (self.radius / norm))

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the norm."""
        return bool(np.linalg.norm(as_point(self, x).ravel()) <= self.radius * (1 + tolerance))

    @property
    def diameter(self) -> float:
        """Twice the radius."""
        return 2 * self.radius
