"""Privacy accounting of the Gaussian mechanism: epsilon after repeated releases with
bounded sensitivity to one client's data.

A release with noise of standard deviation z times the sensitivity is 1/z-GDP, and T of
them together are sqrt(T)/z-GDP (Dong et al.). mu-GDP is (epsilon, delta)-differential
privacy if and only if ``delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 -
epsilon/mu)`` (Balle and Wang, Theorem 8). Both steps are exact, so no accountant that
composes by moments reports a smaller epsilon.

Sources: Dong, Roth, Su, "Gaussian Differential Privacy", Journal of the Royal
Statistical Society B, 2022, arXiv 1905.02383; Balle, Wang, "Improving the Gaussian
Mechanism for Differential Privacy: Analytical Calibration and Optimal Denoising", ICML
2018, arXiv 1805.06530.
"""

import math

from fedapps.algorithms.common.options import check_range


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-differential
    privacy.
    """
    # imported here: SciPy is slow to import, and most runs do not need it
    from scipy.special import log_ndtr

    # in logarithms: e^epsilon alone overflows
    log_tail = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return max(0.0, math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(log_tail))


def gaussian_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return epsilon at ``delta`` after ``releases`` releases, each with noise of
    ``noise_multiplier`` times the sensitivity.
    """
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
    from scipy.optimize import brentq  # imported here, as above

    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-9))


def concentrated_epsilon(rho: float, delta: float) -> float:
    """Return epsilon at ``delta`` of a mechanism that is ``rho``-concentrated: its
    Renyi divergence of each order a is at most ``rho a``. Releases add up their rho.

    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
    NeurIPS 2020, arXiv 2004.00010, Proposition 12, at the best order.
    """
    check_range("delta", delta, 0, 1, open_low=True, open_high=True)
    if not rho:
        return 0.0
    from scipy.optimize import minimize_scalar  # imported here, as above

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)  # the order less 1
        order = 1 + excess
        tail = -math.log(delta) - math.log(order) + excess * math.log(excess / order)
        return rho * order + tail / excess

    best = minimize_scalar(bound, bounds=(-20, 20), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(best.fun))
