"""The choice of lambda: the estimates against a simulation with known variances, the
weights against their limits.
"""

import math

import numpy as np
import pytest

from algorithms.personal.choice import (
    counted,
    half_noise,
    least,
    pooled_curve,
    shrinkage,
    shrunk,
)


def clients(rng, tau, sigma, samples, grid=11):
    """Return the curves of clients, of their halves and the true ones: per-sample noise
    sigma^2, own deviation tau^2, over the grid.
    """
    common = np.linspace(-1, 1, grid) ** 2
    curves, noise, truth = [], [], []
    for n in samples:
        own = common + rng.normal(0, tau / math.sqrt(grid - 1), grid)
        a, b = -(-n // 2), n // 2
        halves = [own + rng.normal(0, sigma / math.sqrt((grid - 1) * m), grid) for m in (a, b)]
        curves.append((a * halves[0] + b * halves[1]) / n)
        noise.append(half_noise(*halves, (a, b)))
        truth.append(own)
    return np.array(curves), np.array(noise), np.array(truth)


def test_k_is_the_ratio_of_the_variances():
    rng, samples = np.random.default_rng(0), np.array([7, 20, 55] * 400)
    curves, noise, _ = clients(rng, 0.5, 2.0, samples)
    assert noise.mean() == pytest.approx(4.0, rel=0.05)
    assert shrinkage(curves, samples.astype(float), noise) == pytest.approx(16.0, rel=0.1)


def test_the_variance_between_three_unequal_clients_is_unbiased():
    """Three clients make a difference between m - 1 and m, N - sum n^2 / N and N."""
    rng, samples = np.random.default_rng(5), np.array([7, 20, 55])
    found = []
    for _ in range(2000):
        curves, noise, _ = clients(rng, 1.0, 2.0, samples)
        found.append(noise.mean() / shrinkage(curves, samples.astype(float), noise))
    assert np.mean(found) == pytest.approx(1.0, abs=0.04)


def test_the_shrunk_curve_is_nearer_to_the_truth_than_either():
    rng, samples = np.random.default_rng(1), np.array([7, 20, 55] * 100)
    curves, noise, truth = clients(rng, 0.5, 2.0, samples)
    pooled, k = pooled_curve(curves, samples), shrinkage(curves, samples.astype(float), noise)

    def error(weight):
        result = [shrunk(c, pooled, n, weight) for c, n in zip(curves, samples, strict=True)]
        return sum(((f - t + t.mean()) ** 2).sum() for f, t in zip(result, truth, strict=True))

    assert error(k) < 0.8 * min(error(0.0), error(math.inf))
    assert error(k) < min(error(k / 4), error(4 * k))


def test_clients_that_are_alike_share_one_curve():
    rng, samples = np.random.default_rng(2), np.array([10] * 50)
    result = [
        shrinkage(c, samples.astype(float), n)
        for c, n, _ in (clients(rng, 0.0, 2.0, samples) for _ in range(20))
    ]
    assert np.median(result) > 200
    assert sum(map(math.isinf, result)) >= 5
    assert shrinkage(np.ones((1, 11)), np.array([5.0]), np.array([1.0])) == math.inf


def test_limits_and_levels():
    own, pooled = np.array([3.0, 1.0, 2.0]), np.array([100.0, 103.0, 106.0])
    assert least(shrunk(own, pooled, 12, 0.0)) == 1
    assert least(shrunk(own, pooled, 12, math.inf)) == 0
    assert shrunk(own, pooled, 12, 12.0) == pytest.approx([-1.0, -0.5, 1.5])  # levels do not matter
    np.testing.assert_allclose(shrunk(own + 7, pooled - 9, 12, 12.0), shrunk(own, pooled, 12, 12.0))


def test_the_least_loss_then_the_most_right_then_the_first():
    assert least(np.array([2.0, 1.0, 1.0, 1.0]), np.array([0.9, 0.5, 0.6, 0.6])) == 2
    assert least(np.array([math.nan, 5.0])) == 1
    assert least(np.array([math.nan, math.inf])) == 0


def test_one_client_does_not_choose_for_all():
    rng, samples = np.random.default_rng(3), np.array([30] * 20)
    curves, noise, _ = clients(rng, 0.5, 1.0, samples)
    honest = pooled_curve(curves[1:], samples[1:].astype(float))
    for lie in (1e12, -1e12):
        curves[0] = lie * np.linspace(0, 1, 11)
        noise[0] = 1e12
        chosen = least(pooled_curve(curves, samples.astype(float)))
        assert honest[chosen] - honest.min() < 0.05 * np.ptp(honest)
        assert 1 < shrinkage(curves, samples.astype(float), noise) < 20  # without the liar: 4
        claimed = counted(curves, np.array([9e14, *samples[1:]]))
        assert honest[least(pooled_curve(curves, claimed))] - honest.min() < 0.05 * np.ptp(honest)
        assert 0.5 < shrinkage(curves, claimed, noise) < 20
        np.testing.assert_array_equal(claimed[1:], samples[1:])
    flat = np.zeros((3, 11))
    flat[0] = np.linspace(0, 1, 11)
    # nothing to compare it with
    np.testing.assert_allclose(pooled_curve(flat, np.ones(3)), (flat[0] - 0.5) / 3, atol=1e-12)
