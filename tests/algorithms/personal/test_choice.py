"""The choice by losses: the shrunk curve against a simulation with known variances, the
weights against their limits.
"""

import math

import numpy as np
import pytest

from fedapps.algorithms.personal.choice import counted, least, pooled_curve, shrunk


def clients(rng, tau, sigma, samples, grid=11):
    """Return the curves of clients and the true ones: per-sample noise sigma^2, own
    deviation tau^2, over the grid.
    """
    common = np.linspace(-1, 1, grid) ** 2
    truth = [common + rng.normal(0, tau / math.sqrt(grid - 1), grid) for _ in samples]
    noise = [rng.normal(0, sigma / math.sqrt((grid - 1) * n), grid) for n in samples]
    return np.array(truth) + noise, np.array(truth)


def test_the_shrunk_curve_is_nearer_to_the_truth_than_either():
    """k = sigma^2 / tau^2 = 16."""
    rng, samples = np.random.default_rng(1), np.array([7, 20, 55] * 100)
    curves, truth = clients(rng, 0.5, 2.0, samples)
    pooled = pooled_curve(curves, samples)

    def error(k):
        result = [shrunk(c, pooled, n, k) for c, n in zip(curves, samples, strict=True)]
        return sum(((f - t + t.mean()) ** 2).sum() for f, t in zip(result, truth, strict=True))

    assert error(16.0) < 0.8 * min(error(0.0), error(math.inf))
    assert error(16.0) < min(error(4.0), error(64.0))


def test_limits_and_levels():
    own, pooled = np.array([3.0, 1.0, 2.0]), np.array([100.0, 103.0, 106.0])
    assert (least(shrunk(own, pooled, 12, 0.0)), least(shrunk(own, pooled, 12, math.inf))) == (1, 0)
    assert shrunk(own, pooled, 12, 12.0) == pytest.approx([-1.0, -0.5, 1.5])  # levels do not matter
    # 36 samples beside k = 12: three quarters of (1, -1, 0), one of (-3, 0, 3)
    assert shrunk(own, pooled, 36, 12.0) == pytest.approx([0.0, -0.75, 0.75])
    np.testing.assert_allclose(shrunk(own + 7, pooled - 9, 12, 12.0), shrunk(own, pooled, 12, 12.0))


def test_the_least_loss_then_the_most_right_then_the_first():
    assert least(np.array([2.0, 1.0, 1.0, 1.0]), np.array([0.9, 0.5, 0.6, 0.6])) == 2
    assert (least(np.array([math.nan, 5.0])), least(np.array([math.nan, math.inf]))) == (1, 0)


def test_one_client_does_not_choose_for_all():
    rng, samples = np.random.default_rng(3), np.array([30] * 20)
    curves, _ = clients(rng, 0.5, 1.0, samples)
    honest = pooled_curve(curves[1:], samples[1:].astype(float))
    for lie in (1e12, -1e12):
        curves[0] = lie * np.linspace(0, 1, 11)
        chosen = least(pooled_curve(curves, samples.astype(float)))
        assert honest[chosen] - honest.min() < 0.05 * np.ptp(honest)
        claimed = counted(curves, np.array([9e14, *samples[1:]]))
        assert honest[least(pooled_curve(curves, claimed))] - honest.min() < 0.05 * np.ptp(honest)
        np.testing.assert_array_equal(claimed[1:], samples[1:])
    flat = np.zeros((3, 11))
    flat[0] = np.linspace(0, 1, 11)
    # nothing to compare it with
    np.testing.assert_allclose(pooled_curve(flat, np.ones(3)), (flat[0] - 0.5) / 3, atol=1e-12)
