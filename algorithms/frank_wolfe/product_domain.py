"""Product of several domains, one for every layer of a net. The base class is in
``algorithms/frank_wolfe/domain.py``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedapps.algorithms.frank_wolfe.atoms import Array, Atom, Float64, Parts
from fedapps.algorithms.frank_wolfe.domain import Domain, as_point, check_shape


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
