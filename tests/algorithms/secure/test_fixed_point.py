"""Fixed point: sums are exact, errors are bounded, what does not fit is refused."""

import math

import numpy as np
import pytest

from fedapps.algorithms.secure.fixed_point import (
    decode,
    encode,
    exponent,
    from_bytes,
    to_bytes,
    whole,
)
from tests.helpers import refused


@pytest.mark.parametrize("count", [3, 20, 1000])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 16.0])
def test_the_weighted_mean_is_within_the_bound(count, bound):
    rng = np.random.default_rng(count)
    most = 2**16
    weights = rng.integers(1, most, count)
    weights[0], weights[1] = most, 1
    values = rng.uniform(-bound, bound, (count, 50))
    values[0], values[:, 0], values[:, 1] = bound, bound, -bound
    e = exponent(count, most * bound)
    total = np.zeros(50, np.uint64)
    for weight, row in zip(weights, values, strict=True):
        total += from_bytes(to_bytes(encode(weight * row, most * bound, e, "update")))
    exact = (weights[:, None] * values).sum(0)
    error = np.abs(decode(total, e) - exact).max() / weights.sum()
    assert error <= count / 2 * 2.0**-e / weights.sum() + 1e-15 * bound
    assert error <= 2.0**-20 * bound


def test_largest_sums_do_not_wrap():
    for count, most in ((3, 1.0), (7, 3.3), (1000, 65535 * 16.0)):
        e = exponent(count, most)
        for sign in (1, -1):
            one = encode(np.full(2, sign * most), most, e, "update")
            assert decode(one * np.uint64(count), e) == pytest.approx(sign * count * most, rel=1e-9)


def test_no_bit_is_left_over_and_none_is_missing():
    """The error of a number, 2^-e / 2, is at most n most / 2^46. Three times almost
    1/3, each rounded up, would be 2^47 + 1 with one bit more.
    """
    for count, most in ((1024, 1.0), (1000, 2.0**16)):
        assert 0.5 * 2.0 ** -exponent(count, most) <= count * most / 2**46
    third = math.nextafter(1 / 3, 0)
    words = encode(np.full(1, third), third, exponent(3, third), "update")
    assert decode(words + words + words, exponent(3, third))[0] == pytest.approx(1.0, abs=1e-13)


def test_bytes_round_trip_modulo_two_to_the_48():
    values = np.array([0, 1, -1, 2**47 - 1, -(2**47)], np.int64)
    octets = to_bytes(values.view(np.uint64))
    assert octets.shape == (30,)
    assert (whole(from_bytes(octets)) == values).all()
    refused(lambda: from_bytes(octets[:-1]), "29 bytes are no vector")


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.01, -1.01])
def test_what_does_not_fit_is_refused(bad):
    refused(
        lambda: encode(np.array([0.5, bad]), 1.0, 20, "'w'"),
        r"'w' is above 1, or not finite: it fits into no",
    )


def test_sums_that_are_too_large_are_refused():
    refused(lambda: exponent(1000, 2.0**40), "do not fit into 48 bits")
