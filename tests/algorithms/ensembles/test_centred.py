"""The log loss's gradient of the sampled ensemble with weights that sum to 1, by finite
differences and exact enumeration.
"""

from itertools import product

import numpy as np
import pytest

from fedapps.algorithms.common.mirror import MIRRORS
from fedapps.algorithms.ensembles.mixture_losses import (
    centred,
    chain_rule,
    inclusion,
    log_loss,
    sampled_weights,
)

RNG = np.random.default_rng(7)
Q, OUTCOMES = 5, 6
TABLES, F = RNG.dirichlet(np.ones(OUTCOMES), Q), RNG.dirichlet(np.ones(OUTCOMES))
ALPHA = RNG.dirichlet(np.ones(Q))


def slope(function, at, step=1e-6):
    return [(function(at + e) - function(at - e)) / (2 * step) for e in step * np.eye(len(at))]


def sets(gamma):
    """Every non-empty set that independent draws can give, with its probability (an
    empty one is drawn again).
    """
    for bits in product([False, True], repeat=len(gamma)):
        on = np.array(bits)
        if on.any():
            yield (
                np.flatnonzero(on),
                float(np.where(on, gamma, 1 - gamma).prod()) / (1 - np.prod(1 - gamma)),
            )


@pytest.mark.parametrize("alpha", [ALPHA, 3.7 * ALPHA, RNG.uniform(0.1, 2, Q)])
def test_it_is_the_slope_of_the_loss_at_weights_divided_by_their_sum(alpha):
    gradient = centred(log_loss(alpha, TABLES, F)[1], alpha)
    np.testing.assert_allclose(
        gradient, slope(lambda a: log_loss(a / a.sum(), TABLES, F)[0], alpha), rtol=1e-6, atol=1e-8
    )
    assert alpha @ gradient == pytest.approx(0, abs=1e-12)  # to scale the weights changes nothing


@pytest.mark.parametrize("sampling", ["uniform", "weighted"])
def test_by_the_chain_rule_its_mean_is_the_slope_of_the_mean_loss_of_what_is_drawn(sampling):
    gamma = inclusion(ALPHA, 2.5, sampling)

    def mean_loss(alpha):  # gamma stays: it is what the round was drawn with
        weights = ((sampled_weights(alpha, ids, gamma), ids, p) for ids, p in sets(gamma))
        return sum(p * log_loss(at / at.sum(), TABLES[ids], F)[0] for at, ids, p in weights)

    mean = np.zeros(Q)
    for ids, p in sets(gamma):
        at = sampled_weights(ALPHA, ids, gamma)
        mean[ids] += p * chain_rule(centred(log_loss(at, TABLES[ids], F)[1], at), gamma[ids])
    np.testing.assert_allclose(mean, slope(mean_loss, ALPHA), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mirror", MIRRORS)
def test_where_everything_is_sent_the_step_is_the_papers(mirror):
    raw = log_loss(ALPHA, TABLES, F)[1]
    for rate in (0.1, 3.0):
        np.testing.assert_allclose(
            MIRRORS[mirror](ALPHA, centred(raw, ALPHA), rate),
            MIRRORS[mirror](ALPHA, raw, rate),
            atol=1e-12,
        )


def test_it_may_be_taken_after_the_sum_over_clients():
    # lambda p / seen need not sum to 1
    gradients, weights = RNG.normal(size=(3, Q)), np.array([0.2, 0.9, 0.4])
    one_by_one = sum(w * centred(g, ALPHA) for w, g in zip(weights, gradients, strict=True))
    np.testing.assert_allclose(one_by_one, centred(weights @ gradients, ALPHA))
