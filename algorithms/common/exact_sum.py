"""Sums of real numbers that do not depend on the order or the grouping of the terms:
fixed point in 64-bit integers.

A term v is split into three integers, ``v = a + b 2^-31 + c 2^-62`` with 0 <= b < 2^31
and 0 <= c <= 2^31, c rounded. Integers are added without rounding, so a sum of sums is
the sum: one worker and sixteen give the same bits. A term above 2^-10 in size is exact,
a smaller one is off by 2^-63 at most; 2^31 terms below 2^31 fit.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
#: Bits of the two lower parts, and the bound on the size of a term.
BITS = 31
LARGEST = 2.0**31


class ExactSum:
    """A sum of vectors (n,): ``parts`` (3, n), the sums of a, b and c."""

    def __init__(self, size: int) -> None:
        self.parts: NDArray[np.int64] = np.zeros((3, size), np.int64)

    def add(self, values: Floats) -> None:
        """Add a vector (n,). Raises ``OverflowError`` unless all its numbers are finite
        and below 2^31 in size.
        """
        if not (np.abs(values) < LARGEST).all():
            raise OverflowError(
                f"a sum in fixed point takes numbers below {LARGEST:g}, not "
                f"{np.abs(values).max():.3g}"
            )
        rest = values
        for part in self.parts[:2]:
            whole = np.floor(rest)
            part += whole.astype(np.int64)
            rest = (rest - whole) * 2.0**BITS  # exact: whole numbers and powers of two
        self.parts[2] += np.rint(rest).astype(np.int64)

    def merge(self, parts: ArrayLike) -> None:
        """Add the parts (3, n) of another sum. Raises ``ValueError`` for another shape
        or type.
        """
        other = np.asarray(parts)
        if other.shape != self.parts.shape or other.dtype != np.int64:
            raise ValueError(
                f"parts of shape {other.shape} and type {other.dtype}: must be {self.parts.shape} "
                "of int64"
            )
        self.parts += other

    def value(self) -> Floats:
        """Return the sum (n,), rounded once."""
        a, b, c = self.parts
        b = b + (c >> BITS)
        a = a + (b >> BITS)
        low = ((b & (2**BITS - 1)) << BITS) | (c & (2**BITS - 1))  # below 2^62
        return np.asarray(a + low * 2.0 ** (-2 * BITS))
