"""With up to f arbitrary points every result stays within its bound; with none it
equals the mean, or a value computed by hand.
"""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedapps.algorithms.common.averaging import difference, weighted_average
from fedapps.algorithms.common.robust import (
    geometric_median,
    median,
    median_weights,
    multi_krum,
    trimmed_mean,
)
from tests.helpers import refused

RULES = {
    "median": lambda x, f: median(x),
    "trimmed mean": trimmed_mean,
    "krum": lambda x, f: x[multi_krum(x, f, 1)].mean(axis=0),
    "multi-krum": lambda x, f: x[multi_krum(x, f)].mean(axis=0),
    "geometric median": lambda x, f: geometric_median(x),
}


def outliers(f, d, sound, rng):
    """Return sets of f points: far away together, far away on their own, near, copies
    of one, or such that the mean would be anywhere.
    """
    return [
        np.full((f, d), 1e14),
        rng.normal(size=(f, d)) * 10.0 ** rng.integers(0, 15, (f, 1)),
        sound.mean(axis=0) + 3 * sound.std(axis=0) + rng.normal(size=(f, d)) * 1e-3,
        np.repeat(sound[:1], f, axis=0),
        np.repeat(-len(sound) / f * sound.mean(axis=0)[None] + 5.0, f, axis=0),
    ]


def sets(least):
    """Return (points, f, sound points) for all sets of outliers and the largest f that
    a rule bears.
    """
    for seed, (n, d) in enumerate([(5, 1), (9, 3), (10, 40), (21, 2), (40, 7)]):
        for f in sorted({1, (n - least) // 2}):
            rng = np.random.default_rng(seed)
            sound = rng.normal(size=(n - f, d)) + 2.0
            for wrong in outliers(f, d, sound, rng):
                yield rng.permutation(np.concatenate([sound, wrong])), f, sound


@pytest.mark.parametrize("rule", ["median", "trimmed mean"])
def test_every_coordinate_stays_between_those_of_sound_points(rule):
    for x, f, sound in sets(1):
        got = RULES[rule](x, f)
        assert (got >= sound.min(axis=0) - 1e-12).all()
        assert (got <= sound.max(axis=0) + 1e-12).all()


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_krum_stays_near_every_sound_point(rule):
    for x, f, sound in sets(3):
        n = len(x)
        bound = (1 + np.sqrt((n - f - 2) / (n - 2 * f - 1))) * np.linalg.norm(
            sound[:, None] - sound[None], axis=2
        ).max()
        assert np.linalg.norm(sound - RULES[rule](x, f), axis=1).max() <= bound


def test_the_geometric_median_stays_near_any_centre():
    for x, f, sound in sets(1):
        got = geometric_median(x)
        for centre in (sound.mean(axis=0), sound[0], np.zeros(x.shape[1])):
            assert np.linalg.norm(got - centre) <= 2 * np.linalg.norm(
                sound - centre, axis=1
            ).sum() / (len(x) - 2 * f) * (1 + 1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_order_does_not_matter(rule):
    rng = np.random.default_rng(0)
    for n, f in ((7, 1), (12, 3)):
        x = rng.normal(size=(n, 4)) * np.where(np.arange(n) < f, 100.0, 1.0)[:, None]
        wanted = RULES[rule](x, f)
        for _ in range(5):
            np.testing.assert_allclose(
                RULES[rule](rng.permutation(x), f), wanted, rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("rule", RULES)
def test_moving_all_points_moves_the_result(rule):
    x = np.random.default_rng(1).normal(size=(9, 3))
    np.testing.assert_allclose(RULES[rule](3 * x + 5, 2), 3 * RULES[rule](x, 2) + 5, rtol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_equal_points_are_the_result(rule):
    np.testing.assert_allclose(RULES[rule](np.full((8, 3), 0.3), 2), 0.3, rtol=1e-12)


def test_without_outliers_it_is_the_mean():
    x = np.random.default_rng(2).normal(size=(8, 5))
    np.testing.assert_array_equal(trimmed_mean(x, 0), x.mean(axis=0))
    assert multi_krum(x, 0).tolist() == list(range(8))
    # the other end: all but the middle
    np.testing.assert_allclose(trimmed_mean(x[:7], 3), median(x[:7]))


def test_krum_by_hand():
    x = np.array([[0.0], [1.0], [3.0], [10.0], [11.0]])
    # f = 1: scores over 2 neighbours are 1 + 9, 1 + 4, 4 + 9, 1 + 49, 1 + 64
    assert (multi_krum(x, 1, 1).tolist(), multi_krum(x, 1).tolist()) == ([1], [0, 1, 2, 3])


@pytest.mark.parametrize("seed", range(4))
def test_the_geometric_median_is_the_minimum(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 3)) * np.where(np.arange(9) < 2, 50.0, 1.0)[:, None]
    total = lambda z: np.linalg.norm(x - z, axis=1).sum()
    optimum = minimize(
        total,
        x.mean(axis=0),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000},
    )
    got = geometric_median(x)
    assert total(got) <= total(optimum.x) * (1 + 1e-9)
    np.testing.assert_allclose(got, optimum.x, atol=1e-4)
    weights = median_weights(x)
    assert weights.sum() == pytest.approx(1)
    assert (weights > 0).all()


def test_a_point_of_the_set_may_be_the_median():
    """Of a triangle with an angle above 120 degrees, and of a majority of equal
    points.
    """
    np.testing.assert_allclose(
        geometric_median(np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.01]])), [0.0, 0.01], atol=1e-6
    )
    np.testing.assert_allclose(
        geometric_median(np.array([[2.0]] * 3 + [[7.0], [9.0]])), [2.0], atol=1e-6
    )
    steiner = geometric_median(np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]]))
    np.testing.assert_allclose(steiner, [0.5, np.sqrt(3) / 6], atol=1e-8)


# --- averaging ------------------------------------------------------------------------


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
    # 3.75 is rounded
    assert (got[0], got[2], got[3].shape) == (np.float32(1.75), 4, ())


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda rule=rule, x=x, f=f: RULES[rule](x, f), "need at least")
            for rule, x, f in [
                ("trimmed mean", np.zeros((4, 1)), 2),
                ("krum", np.zeros((4, 1)), 1),
                ("multi-krum", np.zeros((6, 1)), 2),
                ("median", np.zeros((0, 1)), 0),
                ("median", np.array([[np.nan]]), 0),
                ("geometric median", np.zeros(3), 0),
                ("trimmed mean", np.zeros((4, 1)), -1),
            ]
        ),
        (lambda: multi_krum(np.zeros((5, 1)), 1, 5), r"choose 1\.\.4"),
        *(
            (
                lambda weights=weights: weighted_average([[np.ones(1)], [np.ones(1)]], weights),
                "weight",
            )
            for weights in [[], [1], [0, 0], [-1, 2], [np.inf, 1], [np.nan, 1]]
        ),
    ],
)
def test_too_few_points_and_bad_weights_are_refused(call, message):
    refused(call, message)
