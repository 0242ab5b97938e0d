"""Domains of arrays of any shape: l1 ball, simplex, box, l2 ball, k-sparse polytope.

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

from fedapps.algorithms.common.checks import check_range
from fedapps.algorithms.common.mirror import project_simplex
from fedapps.algorithms.frank_wolfe.atoms import (
    Array,
    Atom,
    Corner,
    DensePoint,
    Entry,
    Float64,
    SignedEntries,
)
from fedapps.algorithms.frank_wolfe.domain import (
    Ball,
    Domain,
    as_gradient,
    as_point,
    check_packed,
    check_shape,
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
        index, value = check_packed(self, arrays, ("i", 1), ("f", 1))
        return _entry(self, int(index[0]), float(value[0]), (self.radius, -self.radius))

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


def _entry(domain: Domain, index: int, value: float, allowed: Sequence[float]) -> Entry:
    """Return an entry read from a message; raises ``ValueError`` unless it is an
    extreme point.
    """
    if not 0 <= index < math.prod(domain.shape):
        raise ValueError(
            f"a packed atom names entry {index} of a {type(domain).__name__} of shape "
            f"{domain.shape}"
        )
    if not any(math.isclose(value, one) for one in allowed):
        raise ValueError(
            f"a packed atom has the value {value:g}: an extreme point has one of "
            f"{', '.join(f'{v:g}' for v in allowed)}"
        )
    return Entry(index, value, domain.shape)


@dataclass(frozen=True)
class Simplex(Ball):
    """``x >= 0, sum x = radius``. Atom: one entry."""

    radius: float = 1.0
    num_arrays = 2

    def lmo(self, gradient: Any, warm: Atom | None = None) -> Entry:
        """Return the entry with the smallest gradient."""
        return Entry(int(as_gradient(self, gradient).argmin()), self.radius, self.shape)

    def unpack(self, arrays: Sequence[Array]) -> Entry:
        """Read an index and the value ``radius``."""
        index, value = check_packed(self, arrays, ("i", 1), ("f", 1))
        return _entry(self, int(index[0]), float(value[0]), (self.radius,))

    def project(self, x: Array) -> Float64:
        """Subtract the same amount from all entries and clip at 0."""
        scaled = as_point(self, x).ravel() / self.radius
        return np.asarray(self.radius * project_simplex(scaled).reshape(self.shape))

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the smallest entry and the sum."""
        point, slack = as_point(self, x), tolerance * self.radius
        return bool(
            point.min() >= -slack and abs(point.sum(dtype=np.float64) - self.radius) <= slack
        )

    @property
    def diameter(self) -> float:
        """The distance between two vertices."""
        return math.sqrt(2) * self.radius if math.prod(self.shape) > 1 else 0.0

    def start(self) -> Float64:
        """Return the centre."""
        return np.full(self.shape, self.radius / math.prod(self.shape))


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """``lower <= x <= upper``, the bounds being numbers or arrays of the domain's
    shape. Atom: one bit per entry.
    """

    shape: tuple[int, ...]
    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        for name in ("lower", "upper"):
            bound = np.asarray(getattr(self, name), np.float64)
            if bound.shape not in ((), self.shape) or not np.isfinite(bound).all():
                raise ValueError(
                    f"{name} of shape {bound.shape}: give one finite number, or one for each entry "
                    f"of {self.shape}"
                )
            object.__setattr__(self, name, np.broadcast_to(bound, self.shape))
        if (wrong := int((self.lower > self.upper).sum())) > 0:
            raise ValueError(f"lower > upper in {wrong} entries: a box needs lower <= upper")

    def lmo(self, gradient: Any, warm: Atom | None = None) -> Corner:
        """Return lower where the gradient is positive, else upper."""
        return Corner(as_gradient(self, gradient) <= 0, self.lower, self.upper)

    def unpack(self, arrays: Sequence[Array]) -> Corner:
        """Read one bit per entry."""
        count = math.prod(self.shape)
        (bits,) = check_packed(self, arrays, ("u", (count + 7) // 8))
        if bits.itemsize > 1:
            raise ValueError("a packed atom of Box holds bytes")
        return Corner(
            np.unpackbits(bits, count=count).astype(bool).reshape(self.shape),
            self.lower,
            self.upper,
        )

    def project(self, x: Array) -> Float64:
        """Clip to the bounds."""
        return np.clip(np.asarray(as_point(self, x), np.float64), self.lower, self.upper)

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the bounds."""
        point, slack = (
            as_point(self, x),
            tolerance * max(1.0, float(np.abs([self.lower, self.upper]).max())),
        )
        return bool((point >= self.lower - slack).all() and (point <= self.upper + slack).all())

    @property
    def diameter(self) -> float:
        """The distance between the lower and the upper corner."""
        return float(np.linalg.norm(self.upper - self.lower))

    def start(self) -> Float64:
        """Return the centre."""
        return np.asarray((self.lower + self.upper) / 2)


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


@dataclass(frozen=True)
class KSparse(Domain):
    """The convex hull of all points with at most k non-zero entries, each in [-size,
    size]: ``|x| <= size, sum |x| <= k size``.

    Atom: k entries of plus or minus ``size``, as indices and signs.
    """

    shape: tuple[int, ...]
    k: int
    size: float = 1.0
    num_arrays = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        check_range("size", self.size, 0, open_low=True)
        check_range("k", self.k, 1, math.prod(self.shape))

    def lmo(self, gradient: Any, warm: Atom | None = None) -> SignedEntries:
        """Return the k entries with the largest ``|gradient|``, with the opposite
        signs.
        """
        g = as_gradient(self, gradient).ravel()
        sizes = np.abs(g)
        # the k-th largest: take all above it, then the first ones equal to it
        least = np.partition(sizes, -self.k)[-self.k]
        above = np.flatnonzero(sizes > least)
        indices = np.sort(
            np.concatenate([above, np.flatnonzero(sizes == least)[: self.k - len(above)]])
        ).astype(np.int32)
        return SignedEntries(indices, np.where(g[indices] < 0, self.size, -self.size), self.shape)

    def unpack(self, arrays: Sequence[Array]) -> SignedEntries:
        """Read k ascending indices and their signs."""
        indices, bits = check_packed(self, arrays, ("i", self.k), ("u", (self.k + 7) // 8))
        rising = self.k == 1 or bool((indices[1:] > indices[:-1]).all())
        if (
            bits.itemsize > 1
            or not rising
            or not 0 <= indices[0] <= indices[-1] < math.prod(self.shape)
        ):
            raise ValueError(
                f"a packed atom of KSparse: give {self.k} rising indices below "
                f"{math.prod(self.shape)}, and bits"
            )
        positive = np.unpackbits(bits, count=self.k).astype(bool)
        return SignedEntries(
            indices.astype(np.int32), np.where(positive, self.size, -self.size), self.shape
        )

    def project(self, x: Array) -> Float64:
        """Soft-threshold all entries by the same amount and clip at ``size``; the
        amount is the root of a decreasing function.
        """
        point = np.asarray(as_point(self, x), np.float64)
        sizes, total = np.abs(point), self.k * self.size
        shrink = 0.0
        if np.minimum(sizes, self.size).sum() > total:
            # imported here: SciPy is slow to import, and most runs do not need it
            from scipy.optimize import brentq

            shrink = brentq(
                lambda theta: np.clip(sizes - theta, 0, self.size).sum() - total,
                0,
                sizes.max(),
                xtol=1e-15,
            )
        return np.asarray(np.copysign(np.clip(sizes - shrink, 0, self.size), point))

    def contains(self, x: Array, tolerance: float = 1e-6) -> bool:
        """Check the largest magnitude and the l1 norm."""
        sizes = np.abs(as_point(self, x))
        bound = self.size * (1 + tolerance)
        return bool(sizes.max() <= bound and sizes.sum(dtype=np.float64) <= self.k * bound)

    @property
    def diameter(self) -> float:
        """From a vertex to its opposite."""
        return 2 * self.size * math.sqrt(self.k)
