"""Discrete Gaussian noise, which clients add to their vectors before they mask them, so
that the sum is differentially private although no server adds anything.

A client's noise is a whole number y with probability proportional to ``exp(-y^2 / (2
s^2))``. Draws are exact: every decision compares random bits with a probability, and
where double precision cannot tell the two apart, in 80 digits. The bits are the
operating system's, never those of the run's seed.

Sources: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
NeurIPS 2020, arXiv 2004.00010, Algorithms 1 to 3; Kairouz, Liu, Steinke, "The
Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021, arXiv 2102.06387. By Proposition 13 of the latter the sum of n of them with
variance s^2 each is as private as Gaussian noise of variance n s^2, but for ``10 n
exp(-pi^2 s^2)``: no double precision number is that small for ``s >= LEAST_SCALE``.
"""

import math
import os
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: Smallest standard deviation in whole numbers; largest, for which 64 bits suffice.
LEAST_SCALE, MOST_SCALE = 2**10, 2**45
#: Where a probability in double precision is this near to the random number, the
#: decision is made in decimal.
NEAR = 2.0**-49
DIGITS, MORE_BITS = Context(prec=80), 128


def random_words(count: int) -> NDArray[np.uint64]:
    """Return uniform words of 64 bits (count,) of the operating system."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def discrete_gaussian(count: int, scale: int) -> Whole:
    """Return independent draws (count,); ``scale``: s, at most 2^45."""
    if not 0 < scale <= MOST_SCALE:
        raise ValueError(f"scale = {scale}: choose 1..{MOST_SCALE}")
    parts, left = [np.zeros(0, np.int64)], count
    while left > 0:
        y = discrete_laplace(math.ceil(1.4 * left) + 16, scale)
        away = np.abs(y) - scale
        chances = np.square(away / scale) / 2

        def exactly(place: int, away: Whole = away) -> Fraction:
            return Fraction(int(away[place]) ** 2, 2 * scale**2)

        kept = y[happens(chances, exactly)][:left]
        parts.append(kept)
        left -= len(kept)
    return np.concatenate(parts)


def discrete_laplace(tries: int, scale: int) -> Whole:
    """Return independent draws (up to tries,) with probability proportional to
    ``exp(-|y| / scale)``.
    """
    words = random_words(tries)
    signs = words & np.uint64(1)
    low = (words >> np.uint64(1)) & np.uint64((1 << (scale - 1).bit_length()) - 1)
    fits = low < scale
    low, signs = low[fits].astype(np.int64), signs[fits]
    kept = happens(low / scale, lambda place: Fraction(int(low[place]), scale))
    low, signs = low[kept], signs[kept]
    high, alive = np.zeros(len(low), np.int64), np.arange(len(low))
    while len(alive):  # a geometric number: how often exp(-1) happens in a row
        alive = alive[happens(np.ones(len(alive)), lambda _: Fraction(1))]
        high[alive] += 1
    size = low + scale * high
    kept = (signs == 0) | (size > 0)  # zero has no second sign
    return np.asarray(np.where(signs == 0, size, -size)[kept])


def happens(minus_logs: Floats, exactly: Callable[[int], Fraction]) -> Flags:
    """Return (n,) events, each with probability ``exp(-minus_log)``. ``exactly(i)``:
    the i-th number without rounding.
    """
    tops = random_words(len(minus_logs)) >> np.uint64(11)
    chances, drawn = np.exp(-minus_logs), np.ldexp(tops.astype(np.float64), -53)
    out = drawn < chances
    for place in np.flatnonzero(np.abs(drawn - chances) <= NEAR):
        number = int(tops[place]) << MORE_BITS | int.from_bytes(os.urandom(MORE_BITS // 8))
        minus_log = exactly(int(place))
        power = DIGITS.divide(Decimal(-minus_log.numerator), Decimal(minus_log.denominator))
        chance = DIGITS.multiply(DIGITS.exp(power), Decimal(2 ** (53 + MORE_BITS)))
        out[place] = Decimal(number) < chance
    return out
