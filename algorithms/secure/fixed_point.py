"""Numbers as whole numbers modulo 2^48, in which masks are uniform and cancel exactly.

A number v with ``|v| <= most`` becomes ``round(v 2^e)``, with an e for which the sum of
n such numbers stays below 2^47 in size: then the sum modulo 2^48 is the sum. The error
of a sum is at most ``n / 2 * 2^-e``. In memory a number has 64 bits, and sums wrap
modulo 2^64, which 2^48 divides; only the lower 48 bits, 6 bytes, are sent.

Weights are inside the sum: a client of weight w sends ``w v`` and ``w``. With n
clients, weights up to W and ``|v| <= B``, the weighted mean is off by at most
``n B W / (2^46 mean(w))``: 2^-20 B for a thousand clients with weights of 16 bits.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
BITS = 48
BYTES = BITS // 8
#: A larger exponent would gain nothing: float64 has 53 bits.
MOST_EXPONENT = 60


def exponent(count: int, most: float) -> int:
    """Return e for sums of ``count`` numbers up to ``most`` in size. Raises
    ``ValueError`` if they do not fit.
    """
    if not (count > 0 and 0 < most < math.inf):
        raise ValueError(f"sums of {count} numbers up to {most}: both must be above 0")
    # count * most < 2^high; rounding adds count / 2, far below 2^46
    high = math.frexp(count * most)[1]
    e = min(BITS - 2 - high, MOST_EXPONENT)
    if e < 0:
        raise ValueError(
            f"sums of {count} numbers up to {most:.6g} do not fit into {BITS} bits: choose a "
            "smaller bound or a smaller max-weight"
        )
    return e


def encode(values: NDArray[Any], most: float, e: int, what: str) -> Words:
    """Return numbers (n,) in fixed point. Raises ``ValueError``, which names ``what``,
    for a number that is not finite or larger than ``most``. The server reads it: it
    does not name the number.
    """
    wide = np.asarray(values, np.float64)
    if wide.size and not np.abs(wide).max() <= most:  # NaN if any number is
        raise ValueError(f"{what} is above {most:.6g}, or not finite: it fits into no secure sum")
    return np.rint(np.ldexp(wide, e)).astype(np.int64).view(np.uint64)


def decode(words: Words, e: int) -> NDArray[np.float64]:
    """Return the numbers (n,) that sums modulo 2^48 stand for."""
    return np.ldexp(whole(words).astype(np.float64), -e)


def whole(words: Words) -> NDArray[np.int64]:
    """Return sums modulo 2^48 (n,) as whole numbers from -2^47 to 2^47 - 1."""
    shift = np.uint64(64 - BITS)
    return np.asarray((words << shift).view(np.int64) >> np.int64(64 - BITS))


def to_bytes(words: Words) -> NDArray[np.uint8]:
    """Return the lower 48 bits of words (n,) as bytes (6 n,), little end first."""
    octets = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(octets[:, :BYTES]).reshape(-1)


def from_bytes(octets: NDArray[np.uint8]) -> Words:
    """Return the words (n,) in bytes (6 n,). Raises ``ValueError`` for another
    length.
    """
    if octets.dtype != np.uint8 or octets.ndim != 1 or octets.size % BYTES:
        raise ValueError(f"{octets.size} bytes are no vector of {BYTES}-byte numbers")
    full = np.zeros((octets.size // BYTES, 8), np.uint8)
    full[:, :BYTES] = octets.reshape(-1, BYTES)
    return full.reshape(-1).view("<u8").astype(np.uint64, copy=False)
