import math

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedapps.algorithms.common.privacy import gaussian_delta, gaussian_epsilon


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
def test_mistakes(z, delta, key):
    with pytest.raises(ValueError, match=key):
        gaussian_epsilon(z, 1, delta)
