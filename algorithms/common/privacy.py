"""What Gaussian noise buys: the epsilon of releases that one person's data (here: one client's) can have changed by a bounded amount.

Sources: Dong, Roth, Su 2022, "Gaussian Differential Privacy": a release with noise z times the sensitivity is 1/z-GDP, and T of them
together are sqrt(T)/z-GDP. Balle, Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8: mu-GDP is
(epsilon, delta)-differential privacy exactly if ``delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)``. Nothing is
bounded on the way: no accountant that composes by moments reports less.
"""

import math

from algorithms.common.checks import check_range


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the least delta for which mu-GDP is (epsilon, delta)-differential privacy."""
    from scipy.special import log_ndtr  # late: SciPy takes long to import, and most runs do without

    log_tail = epsilon + log_ndtr(-mu / 2 - epsilon / mu)  # as a logarithm: e^epsilon alone overflows
    return max(0.0, math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(log_tail))


def gaussian_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return epsilon after ``releases`` releases with noise of ``noise_multiplier`` times the sensitivity each, at ``delta``."""
    check_range("noise-multiplier", noise_multiplier, 0, open_low=True)
    check_range("delta", delta, 0, 1, open_low=True, open_high=True)
    if not releases:
        return 0.0
    mu = math.sqrt(releases) / noise_multiplier
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    from scipy.optimize import brentq  # late, too

    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-9))
