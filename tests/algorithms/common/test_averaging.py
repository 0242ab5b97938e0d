import numpy as np
import pytest

from fedapps.algorithms.common.averaging import difference, weighted_average


def test_equals_the_formula():
    rng = np.random.default_rng(0)
    models = [[rng.normal(size=(3, 2)), rng.normal(size=4)] for _ in range(5)]
    weights = [1, 2, 3, 4, 10]
    got = weighted_average(models, weights)
    for position in range(2):
        want = sum(w * m[position] for w, m in zip(weights, models, strict=True)) / 20
        np.testing.assert_allclose(got[position], want, rtol=1e-12)


def test_types_are_kept_and_counters_rounded():
    models = [
        [np.float32([1]), np.float16([1]), np.int64([3]), np.array(7)],
        [np.float32([2]), np.float16([2]), np.int64([4]), np.array(8)],
    ]
    got = weighted_average(models, [1, 3])
    assert [a.dtype for a in got] == [np.float32, np.float16, np.int64, np.int64]
    assert got[0] == np.float32(1.75)
    assert got[2] == 4  # 3.75 rounded
    assert got[3].shape == ()


LEAST = np.finfo(np.float32).min


@pytest.mark.parametrize(
    "kept",
    [
        np.float32([0, -np.inf, np.inf]),
        np.float32([LEAST, 3]),
        np.array([2**62 + 1, -5]),
        np.uint64([2**64 - 1]),
        np.complex64([1 + 2j, -np.inf]),
    ],
)
def test_what_all_models_share_stays_however_large_it_is(kept):
    mean = weighted_average([[kept], [kept.copy()], [kept.copy()]], [1, 5, 7])[0]
    assert mean.dtype == kept.dtype
    np.testing.assert_array_equal(mean[np.abs(kept) > 1e3], kept[np.abs(kept) > 1e3])
    np.testing.assert_allclose(mean, kept, rtol=1e-6)


def test_a_difference_of_equal_infinities_is_0():
    got = difference(
        np.float32([-np.inf, np.nan, LEAST, 3]), np.float32([-np.inf, np.nan, LEAST, 1])
    )
    np.testing.assert_array_equal(got, [0, 0, 0, 2])
    assert np.isposinf(difference(np.array(1.0), np.array(-np.inf)))


@pytest.mark.parametrize("weights", [[], [1], [0, 0], [-1, 2], [np.inf, 1], [np.nan, 1]])
def test_bad_weights(weights):
    with pytest.raises(ValueError, match="weight"):
        weighted_average([[np.ones(1)], [np.ones(1)]], weights)
