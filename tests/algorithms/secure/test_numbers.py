"""Numbers of secure sums: noise that is whole, fixed point, and what a graph of few
neighbours leaves to chance.
"""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedapps.algorithms.common.privacy import concentrated_epsilon, gaussian_delta, gaussian_epsilon
from fedapps.algorithms.secure import noise
from fedapps.algorithms.secure.fixed_point import (
    decode,
    encode,
    exponent,
    from_bytes,
    to_bytes,
    whole,
)
from fedapps.algorithms.secure.graph import (
    check_degree,
    local_threshold,
    neighbours,
    risks,
    shares_fault,
    tail,
)
from tests.helpers import refused


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
        abs(float(np.mean(drawn == y)) - p) / np.sqrt(p * (1 - p) / count)
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
    weights = {y: np.exp(-(y**2) / (2 * scale**2)) for y in range(-12 * scale, 12 * scale + 1)}
    total = sum(weights.values())
    assert far(drawn, {y: w / total for y, w in weights.items()}) < 4.5


def test_frequencies_are_those_of_the_discrete_laplace(repeatable):
    drawn = noise.discrete_laplace(300_000, 4)
    q = np.exp(-1 / 4)
    assert far(drawn, {y: (1 - q) / (1 + q) * q ** abs(y) for y in range(-60, 61)}) < 4.5


def test_large_scales_have_the_right_moments(repeatable):
    scale = 2**40
    drawn = noise.discrete_gaussian(100_000, scale) / scale
    assert abs(drawn.mean()) < 4.5 / np.sqrt(100_000)
    assert abs(drawn.var() - 1) < 4.5 * np.sqrt(2 / 100_000)
    assert abs(np.mean(drawn**4) - 3) < 4.5 * np.sqrt(96 / 100_000)


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
        -np.log(delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    ) / (orders - 1)
    assert concentrated_epsilon(rho, delta) == pytest.approx(bounds.min(), abs=1e-6)


# --- fixed point ----------------------------------------------------------------------

# Fixed point: sums are exact, errors are bounded, what does not fit is refused.


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
    error = np.abs(decode(total, e) - (weights[:, None] * values).sum(0)).max() / weights.sum()
    assert error <= count / 2 * 2.0**-e / weights.sum() + 1e-15 * bound
    assert error <= 2.0**-20 * bound


def test_largest_sums_do_not_wrap():
    for count, most in ((3, 1.0), (7, 3.3), (1000, 65535 * 16.0)):
        e = exponent(count, most)
        for sign in (1, -1):
            assert decode(
                encode(np.full(2, sign * most), most, e, "update") * np.uint64(count), e
            ) == pytest.approx(sign * count * most, rel=1e-9)


def test_no_bit_is_left_over_and_none_is_missing():
    """The error of a number, 2^-e / 2, is at most n most / 2^46. Three times almost
    1/3, each rounded up, would be 2^47 + 1 with one bit more.
    """
    for count, most in ((1024, 1.0), (1000, 2.0**16)):
        assert 0.5 * 2.0 ** -exponent(count, most) <= count * most / 2**46
    third = np.nextafter(1 / 3, 0)
    words = encode(np.full(1, third), third, exponent(3, third), "update")
    assert decode(words + words + words, exponent(3, third))[0] == pytest.approx(1.0, abs=1e-13)


def test_bytes_round_trip_modulo_two_to_the_48():
    values = np.array([0, 1, -1, 2**47 - 1, -(2**47)], np.int64)
    octets = to_bytes(values.view(np.uint64))
    assert octets.shape == (30,)
    assert (whole(from_bytes(octets)) == values).all()
    refused(lambda: from_bytes(octets[:-1]), "29 bytes are no vector")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.01, -1.01])
def test_what_does_not_fit_is_refused(bad):
    refused(
        lambda: encode(np.array([0.5, bad]), 1.0, 20, "'w'"),
        r"'w' is above 1, or not finite: it fits into no",
    )


def test_sums_that_are_too_large_are_refused():
    refused(lambda: exponent(1000, 2.0**40), "do not fit into 48 bits")


# --- graph ----------------------------------------------------------------------------

# Graphs of few neighbours, and what they leave to chance.


def test_the_tail_is_that_of_a_draw():
    drawn = np.random.default_rng(0).hypergeometric(7, 13, 8, 200_000)
    for least in range(9):
        assert tail(20, 7, 8, least) == pytest.approx((drawn >= least).mean(), abs=5e-3)
    assert tail(20, 7, 8, 0) == pytest.approx(1)


def test_rings_are_drawn_anew():
    names = [str(k) for k in range(20)]
    assert neighbours(names, 4) != neighbours(names, 4)
    assert all(len(near) == 19 for near in neighbours(names).values())
    refused(lambda: neighbours(names, 5), "must be an even number")


def test_all_neighbours_leave_nothing_to_chance_and_few_do():
    assert (risks(100, 0, 10, 10), risks(100, 99, 10, 10)) == ((0, 0), (0, 0))
    seen, failed = risks(1000, 10, 50, 50)
    assert seen > 1e-6
    assert failed > 1e-6
    # a threshold of a client's neighbours is corrupted, or a ring falls apart
    assert risks(100, 20, 50, 0)[0] == pytest.approx(100 * (tail(99, 50, 20, 16) + 0.5**10))
    refused(lambda: check_degree(1000, 10, 50, 50), r"neighbours = 10: .* choose (\d+)")


def test_the_degree_that_an_error_names_is_allowed():
    with pytest.raises(ValueError, match=r"choose \d+") as caught:
        check_degree(1000, 2, 50, 50)
    degree = int(str(caught.value).rpartition(" ")[2])
    check_degree(1000, degree, 50, 50)
    refused(lambda: check_degree(1000, degree - 2, 50, 50), "choose")
    assert local_threshold(1000, degree, 50) > degree / 2


@pytest.mark.parametrize(
    ("weights", "corrupted", "shown"),
    [
        ([1, 1, 1], 0, False),
        ([3, 2, 1], 0, False),  # as much as the others together
        ([3.1, 2, 1], 0, True),
        ([0, 0, 0], 0, True),  # no mean
        ([1, -1e-9, 1], 0, True),
        ([2, 2, 1, 1], 1, False),
        ([2, 2, 1, 0.5], 1, True),  # one that colludes knows its own part
    ],
)
def test_weights_that_would_show_a_client(weights, corrupted, shown):
    named = {str(place): weight for place, weight in enumerate(weights)}
    assert bool(shares_fault(named, named, corrupted)) == shown
    assert shares_fault(named, [*named, "another"], corrupted)


# --- privacy of Gaussian noise --------------------------------------------------------


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 8.0])
def test_delta_is_the_hockey_stick_divergence_of_two_gaussians(mu, epsilon):
    """By its definition: the integral of max(0, p - e^epsilon q) for p = N(mu, 1), q =
    N(0, 1).
    """

    def excess(x):
        return max(0.0, norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x))

    expected, _ = quad(excess, -12, 12 + mu, points=[epsilon / mu + mu / 2], limit=200)
    assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_epsilon_inverts_delta_and_grows_with_releases():
    result = [gaussian_epsilon(1.3, t, 1e-5) for t in (0, 1, 2, 10, 1000, 10**6)]
    assert (result[0], result) == (0, sorted(result))
    for t, epsilon in zip((1, 2, 10, 1000, 10**6), result[1:], strict=True):
        assert gaussian_delta(math.sqrt(t) / 1.3, epsilon) == pytest.approx(1e-5, rel=1e-4)
    assert gaussian_epsilon(1e6, 1, 1e-5) == 0  # so much noise that delta alone covers it


@pytest.mark.parametrize(
    ("z", "delta", "key"),
    [(0, 1e-5, "noise-multiplier"), (-1, 1e-5, "noise"), (1, 0, "delta"), (1, 1, "delta")],
)
def test_mistakes_of_the_accountant(z, delta, key):
    with pytest.raises(ValueError, match=key):
        gaussian_epsilon(z, 1, delta)
