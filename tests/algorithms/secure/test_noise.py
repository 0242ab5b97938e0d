"""Noise of the clients: whole numbers with the probabilities of a discrete Gaussian."""

import math

import numpy as np
import pytest

from fedapps.algorithms.common.privacy import concentrated_epsilon, gaussian_epsilon
from fedapps.algorithms.secure import noise


@pytest.fixture
def repeatable(monkeypatch):
    """Random bits of a seed: a test of frequencies has to repeat."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(
        noise, "random_words", lambda n: rng.integers(0, 2**64, n, np.uint64, endpoint=False)
    )


def far(drawn, probabilities):
    """Return the largest deviation of frequencies, in standard errors."""
    count = len(drawn)
    return max(
        abs(float(np.mean(drawn == y)) - p) / math.sqrt(p * (1 - p) / count)
        for y, p in probabilities.items()
        if count * p > 50
    )


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 3, 7])
@pytest.mark.parametrize("near", [noise.NEAR, 2.0])
def test_frequencies_are_those_of_the_discrete_gaussian(scale, near, repeatable, monkeypatch):
    """``near`` = 2: every decision is made in decimal."""
    monkeypatch.setattr(noise, "NEAR", near)
    drawn = noise.discrete_gaussian(200_000 if near < 1 else 2_000, scale)
    weights = {y: math.exp(-(y**2) / (2 * scale**2)) for y in range(-12 * scale, 12 * scale + 1)}
    total = sum(weights.values())
    assert far(drawn, {y: w / total for y, w in weights.items()}) < 4.5


def test_frequencies_are_those_of_the_discrete_laplace(repeatable):
    drawn = noise.discrete_laplace(300_000, 4)
    q = math.exp(-1 / 4)
    assert far(drawn, {y: (1 - q) / (1 + q) * q ** abs(y) for y in range(-60, 61)}) < 4.5


def test_large_scales_have_the_right_moments(repeatable):
    scale = 2**40
    drawn = noise.discrete_gaussian(100_000, scale) / scale
    assert abs(drawn.mean()) < 4.5 / math.sqrt(100_000)
    assert abs(drawn.var() - 1) < 4.5 * math.sqrt(2 / 100_000)
    assert abs(np.mean(drawn**4) - 3) < 4.5 * math.sqrt(96 / 100_000)


def test_noise_is_never_that_of_a_seed():
    np.random.seed(0)  # noqa: NPY002
    one = noise.discrete_gaussian(50, 2**20)
    np.random.seed(0)  # noqa: NPY002
    assert (one != noise.discrete_gaussian(50, 2**20)).any()


@pytest.mark.parametrize("scale", [0, 2**45 + 1])
def test_scales_that_64_bits_do_not_hold_are_refused(scale):
    with pytest.raises(ValueError, match="scale ="):
        noise.discrete_gaussian(1, scale)


def test_the_accountant_of_concentrated_privacy():
    """Never below the exact curve of Gaussian noise, and near to it; Gaussian noise of
    multiplier z is 1 / (2 z^2)-concentrated.
    """
    for z, rounds in ((0.5, 1), (1.0, 1), (1.0, 50), (4.0, 300)):
        exact = gaussian_epsilon(z, rounds, 1e-5)
        assert exact <= concentrated_epsilon(rounds / (2 * z**2), 1e-5) <= 1.1 * exact + 0.05
    assert concentrated_epsilon(0.0, 1e-5) == 0.0


def test_the_accountant_is_the_least_over_all_orders():
    rho, delta = 0.3, 1e-6
    orders = 1 + np.logspace(-3, 3, 400_000)
    bounds = rho * orders + (
        -math.log(delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    ) / (orders - 1)
    assert concentrated_epsilon(rho, delta) == pytest.approx(bounds.min(), abs=1e-6)
