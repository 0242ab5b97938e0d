"""Sums in fixed point: against rational arithmetic, and the same bits however the terms
are grouped.
"""

from fractions import Fraction

import numpy as np
import pytest

from fedapps.algorithms.common.exact_sum import ExactSum


def total(terms):
    out = ExactSum(terms.shape[1])
    for term in terms:
        out.add(term)
    return out


def test_the_sum_is_the_rational_one_rounded_once():
    rng = np.random.default_rng(0)
    terms = (
        rng.normal(size=(200, 50)).astype(np.float32)
        * np.exp2(rng.integers(-8, 20, (200, 50)))
        * 123.0
    )
    exact = [float(sum((Fraction(float(x)) for x in column), Fraction(0))) for column in terms.T]
    np.testing.assert_allclose(total(terms).value(), exact, rtol=2**-52, atol=200 * 2.0**-63)
    many = [[1e9, 1.0, -1e9, 2.0**-40], [-1.0] * 4]
    np.testing.assert_array_equal(total(np.array(many).T).value(), [1 + 2.0**-40, -4.0])


@pytest.mark.parametrize("groups", [1, 2, 7, 16, 100])
def test_one_worker_and_sixteen_give_the_same_bits(groups):
    rng = np.random.default_rng(1)
    terms = rng.normal(size=(100, 30)) * np.exp2(rng.integers(-70, 25, (100, 30)))
    together, order = total(terms), rng.permutation(100)
    merged = ExactSum(30)
    for rows in np.array_split(order, groups):
        merged.merge(total(terms[rows]).parts)
    np.testing.assert_array_equal(merged.parts, together.parts)
    assert merged.value().tobytes() == together.value().tobytes()


@pytest.mark.parametrize("bad", [2.0**31, -1e300, np.inf, np.nan])
def test_what_does_not_fit_is_refused(bad):
    with pytest.raises(OverflowError, match="below"):
        ExactSum(2).add(np.array([0.0, bad]))


@pytest.mark.parametrize("parts", [np.zeros((3, 3), np.int64), np.zeros((3, 2)), [[1]]])
def test_parts_of_another_sum_are_refused(parts):
    with pytest.raises(ValueError, match="must be"):
        ExactSum(2).merge(parts)
