from collections import OrderedDict
from itertools import product

import numpy as np
import pytest

from fedapps.algorithms.ensembles.mixture_losses import (
    bias_correction,
    centred,
    chain_rule,
    draw_exact,
    draw_independent,
    inclusion,
    log_loss,
    sampled_weights,
    squared_loss,
    squared_loss_density,
    squared_norms,
)
from fedapps.algorithms.ensembles.predictor_cache import remember
from tests.helpers import assert_arrays, refused


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def scatter(values, ids, count):
    """Return values at their ids, 0 elsewhere: what was not drawn has no gradient."""
    row = np.zeros(count)
    row[ids] = values
    return row


def patterns(gamma):
    """Every set that independent draws can give, the empty set included, with its
    probability.
    """
    for bits in product([0, 1], repeat=len(gamma)):
        on = np.array(bits, bool)
        yield np.flatnonzero(on), float(np.where(on, gamma, 1 - gamma).prod())


@pytest.fixture(params=["uniform", "weighted", "mixed"])
def problem(request, rng):
    """Seven predictors with real outputs on five samples, and inclusion probabilities,
    one of them 1 in "mixed".
    """
    q, m, size = 7, 5, 3
    alpha = rng.dirichlet(np.ones(q))
    some = np.append(rng.uniform(0.1, 0.9, q - 1), 1.0)
    gamma = some if request.param == "mixed" else inclusion(alpha, 2.5, request.param)
    outputs, targets = rng.normal(size=(q, m, size)), rng.normal(size=(m, size))
    return alpha, gamma, outputs, targets, rng.dirichlet(np.ones(m))


# --- unbiasedness, by exact enumeration -----------------------------------------------


def test_the_sampled_ensemble_is_unbiased(problem):
    alpha, gamma, outputs, *_ = problem
    mean = sum(
        p * np.tensordot(sampled_weights(alpha, ids, gamma), outputs[ids], 1)
        for ids, p in patterns(gamma)
    )
    np.testing.assert_allclose(mean, np.tensordot(alpha, outputs, 1), atol=1e-10)


def test_the_corrected_gradient_is_unbiased(problem):
    alpha, gamma, outputs, targets, weights = problem
    mean = np.zeros(7)
    for ids, p in patterns(gamma):
        at, norms = sampled_weights(alpha, ids, gamma), squared_norms(outputs[ids], weights)
        corrected = chain_rule(
            squared_loss(at, outputs[ids], targets, weights)[1], gamma[ids]
        ) - bias_correction(alpha[ids], norms, gamma[ids])
        mean += p * scatter(corrected, ids, 7)
    np.testing.assert_allclose(mean, squared_loss(alpha, outputs, targets, weights)[1], atol=1e-10)


# --- losses ---------------------------------------------------------------------------


def losses_of_random_data():
    rng = np.random.default_rng(1)
    h, m, size = 5, 6, 3
    outputs, targets = (
        rng.dirichlet(np.ones(size), size=(h, m)),
        np.eye(size)[rng.integers(size, size=m)],
    )
    weights, tables, f = (
        rng.dirichlet(np.ones(m)),
        rng.dirichlet(np.ones(8), size=h),
        rng.dirichlet(np.ones(8)),
    )
    f[2] = 0
    f /= f.sum()
    observed = (outputs * targets).sum(axis=2)
    return {
        "log": lambda a: log_loss(a, observed, weights),
        "log density": lambda a: log_loss(a, tables, f),
        "squared": lambda a: squared_loss(a, outputs, targets, weights),
        "squared density": lambda a: squared_loss_density(a, tables, f),
    }


LOSSES = losses_of_random_data()


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name, rng):
    loss = LOSSES[name]
    # also where the weights do not sum to 1, as sampled ones
    for alpha in (np.full(5, 0.2), rng.uniform(0.1, 2, size=5)):
        np.testing.assert_allclose(
            loss(alpha)[1], slope(lambda a: loss(a)[0], alpha), rtol=1e-6, atol=1e-8
        )


def test_densities_are_samples_grouped_by_outcome(rng):
    tables, outcomes = rng.dirichlet(np.ones(4), size=3), rng.integers(4, size=50)
    alpha, even, f = (
        rng.dirichlet(np.ones(3)),
        np.full(50, 1 / 50),
        np.bincount(outcomes, minlength=4) / 50,
    )
    for one, other in (
        (log_loss(alpha, tables[:, outcomes], even), log_loss(alpha, tables, f)),
        (
            squared_loss(alpha, np.repeat(tables[:, None], 50, 1), np.eye(4)[outcomes], even),
            squared_loss_density(alpha, tables, f),
        ),
    ):
        assert one[0] == pytest.approx(other[0], rel=1e-12)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-12)
    unseen = f.copy()
    unseen[0] = 0
    unseen /= unseen.sum()
    np.testing.assert_allclose(
        log_loss(alpha, tables, unseen)[1], log_loss(alpha, tables[:, 1:], unseen[1:])[1]
    )


def test_float32_outputs_give_the_same_to_their_precision(rng):
    tables, f = rng.dirichlet(np.ones(1000), size=20), rng.dirichlet(np.ones(1000))
    alpha = rng.dirichlet(np.ones(20))
    for loss in (log_loss, squared_loss_density):
        low, high = loss(alpha, tables.astype(np.float32), f), loss(alpha, tables, f)
        assert (low[0], low[1].dtype) == (pytest.approx(high[0], rel=1e-5), np.float64)
        np.testing.assert_allclose(low[1], high[1], rtol=1e-3, atol=1e-6)


def test_a_zero_output_never_divides_by_zero():
    points = np.eye(4)
    refused(lambda: log_loss([0.5, 0.5], points[:2], [0.5, 0.25, 0.25, 0]), "probability 0: mix")
    with np.errstate(all="raise"):
        # what has probability 0 did not occur
        loss, gradient = log_loss([0.5, 0.5], points[:2], [0.5, 0.5, 0, 0])
        assert loss == pytest.approx(np.log(2))
        np.testing.assert_allclose(gradient, [-1, -1])
        loss, gradient = log_loss([0.5, 0.5], (0.99 * points + 0.0025)[:2], np.full(4, 0.25))
    assert loss == pytest.approx(-0.5 * np.log(0.99 * 0.5 + 0.0025) - 0.5 * np.log(0.0025))
    assert np.isfinite(gradient).all()


# --- the log loss with weights that sum to 1 ------------------------------------------

RNG = np.random.default_rng(7)
Q, OUTCOMES = 5, 6
DENSITIES, F = RNG.dirichlet(np.ones(OUTCOMES), Q), RNG.dirichlet(np.ones(OUTCOMES))
ALPHA = RNG.dirichlet(np.ones(Q))


def slope(function, at, step=1e-6):
    return [(function(at + e) - function(at - e)) / (2 * step) for e in step * np.eye(len(at))]


@pytest.mark.parametrize("alpha", [ALPHA, 3.7 * ALPHA, RNG.uniform(0.1, 2, Q)])
def test_the_centred_gradient_is_the_slope_of_the_loss_at_weights_divided_by_their_sum(alpha):
    gradient = centred(log_loss(alpha, DENSITIES, F)[1], alpha)
    np.testing.assert_allclose(
        gradient,
        slope(lambda a: log_loss(a / a.sum(), DENSITIES, F)[0], alpha),
        rtol=1e-6,
        atol=1e-8,
    )
    assert alpha @ gradient == pytest.approx(0, abs=1e-12)  # to scale the weights changes nothing


@pytest.mark.parametrize("sampling", ["uniform", "weighted"])
def test_by_the_chain_rule_the_mean_centred_gradient_is_the_slope_of_the_mean_loss_of_what_is_drawn(
    sampling,
):
    gamma = inclusion(ALPHA, 2.5, sampling)
    some = 1 - np.prod(1 - gamma)  # an empty set is drawn again
    drawn = [(ids, p / some) for ids, p in patterns(gamma) if len(ids)]

    def mean_loss(alpha):  # gamma stays: it is what the round was drawn with
        weights = ((sampled_weights(alpha, ids, gamma), ids, p) for ids, p in drawn)
        return sum(p * log_loss(at / at.sum(), DENSITIES[ids], F)[0] for at, ids, p in weights)

    mean = np.zeros(Q)
    for ids, p in drawn:
        at = sampled_weights(ALPHA, ids, gamma)
        mean[ids] += p * chain_rule(centred(log_loss(at, DENSITIES[ids], F)[1], at), gamma[ids])
    np.testing.assert_allclose(mean, slope(mean_loss, ALPHA), rtol=1e-6, atol=1e-8)


# --- which predictors a round sends ---------------------------------------------------


def test_inclusion_probabilities():
    alpha = np.array([0.6, 0.3, 0.1, 0.0])
    assert_arrays((inclusion(alpha, 2, "none"), inclusion(alpha, 3, "uniform")), (1, 0.75))
    np.testing.assert_allclose(inclusion(alpha, 2, "weighted"), [1, 0.6, 0.2, 0.001])
    np.testing.assert_allclose(inclusion(np.full(4, 0.25), 2.0, "weighted"), 0.5)  # gamma_1 = C/q


@pytest.mark.parametrize("budget", [0.5, 1, 7, 31.5, 64, 1000])
@pytest.mark.parametrize("concentration", [0.01, 1.0, 100.0])
def test_inclusion_stays_in_budget_and_above_the_floor(budget, concentration, rng):
    alpha = rng.dirichlet(np.full(1000, concentration))
    gamma = inclusion(alpha, budget, "weighted")
    assert gamma.sum() <= budget * (1 + 1e-12)
    assert gamma.min() >= min(1e-3, budget / 1000) * (1 - 1e-12)
    assert gamma.max() <= 1
    assert (np.diff(gamma[np.argsort(alpha)]) >= -1e-15).all()  # more weight, no less often
    assert inclusion(alpha, budget, "uniform").sum() == pytest.approx(budget)


GAMMA = np.array([1.0, 0.9, 0.5, 0.3, 0.2, 0.1])


def frequencies(draw, count=8000):
    seen, sizes = np.zeros(len(GAMMA)), []
    for _ in range(count):
        ids = draw()
        assert (np.diff(ids) > 0).all()
        seen[ids] += 1
        sizes.append(len(ids))
    return seen / count, np.array(sizes)


def test_independent_draws_have_the_inclusion_probabilities():
    rng = np.random.default_rng(1)
    seen, sizes = frequencies(lambda: draw_independent(GAMMA, rng))
    np.testing.assert_allclose(seen, GAMMA, atol=0.02)
    # independent, not of one size
    assert sizes.var() == pytest.approx((GAMMA * (1 - GAMMA)).sum(), rel=0.08)


def test_exact_draws_have_the_inclusion_probabilities_and_the_size():
    rng = np.random.default_rng(2)
    seen, sizes = frequencies(lambda: draw_exact(GAMMA, 3, rng))
    np.testing.assert_allclose(seen, GAMMA, atol=0.02)
    assert (sizes == 3).all()
    alpha = np.full(2000, 1 / 2000)
    assert {len(draw_exact(inclusion(alpha, 200, "weighted"), 200, rng)) for _ in range(200)} == {
        200
    }


class NearlyOne:
    """A generator whose uniform draw is the largest number below 1, where rounding
    could cost a point or add one.
    """

    def random(self):
        return np.nextafter(1.0, 0.0)

    def permutation(self, ids):
        return ids


def test_exact_draws_keep_their_size_at_the_edge_of_rounding():
    rounded_down = 0
    for q, budget in [(30, 3), (49, 7), (70, 7), (977, 32), (9973, 500)]:
        gamma = np.full(q, budget / q)
        rounded_down += np.cumsum(gamma)[-1] < budget
        assert len(set(draw_exact(gamma, budget, NearlyOne()))) == budget
    assert rounded_down  # else this has tested nothing


def test_exact_draws_of_a_broken_sum_are_one_of_the_two_whole_numbers_beside_it():
    rng = np.random.default_rng(4)
    sizes = np.array([len(draw_exact(np.full(5, 0.5), 3, rng)) for _ in range(4000)])
    assert (set(sizes), sizes.mean()) == ({2, 3}, pytest.approx(2.5, abs=0.03))


def test_exact_draws_of_equal_chances_are_simple_random_samples():
    rng = np.random.default_rng(5)
    pairs = np.zeros((5, 5))
    for _ in range(5000):
        ids = draw_exact(np.full(5, 0.4), 2, rng)
        pairs[np.ix_(ids, ids)] += 1 / 5000
    # Each pair with C (C - 1) / (q (q - 1)): every pair occurs, as without the random
    # order it would not.
    np.testing.assert_allclose(pairs[~np.eye(5, dtype=bool)], 0.1, atol=0.015)


def test_empty_draws_are_drawn_again():
    gamma, rng = np.array([0.2, 0.3]), np.random.default_rng(6)
    draws = [draw_independent(gamma, rng) for _ in range(5000)]
    assert all(len(ids) for ids in draws)
    # The factor that the docstring names.
    assert np.mean([0 in ids for ids in draws]) == pytest.approx(0.2 / (1 - 0.8 * 0.7), abs=0.03)
    assert all(len(draw_exact(gamma, 1, rng)) for _ in range(100))


# --- the algorithm --------------------------------------------------------------------


def test_gamma_one_is_plain_mirror_descent(problem):
    alpha, _, outputs, targets, weights = problem
    gamma = inclusion(alpha, 2, "none")
    ids = draw_independent(gamma, np.random.default_rng(0))
    assert_arrays(
        (ids, draw_exact(gamma, 7, np.random.default_rng(0))), (np.arange(7), np.arange(7))
    )
    at = sampled_weights(alpha, ids, gamma)
    np.testing.assert_array_equal(at, alpha)
    _, gradient = squared_loss(at, outputs[ids], targets, weights)
    np.testing.assert_array_equal(
        bias_correction(at, squared_norms(outputs[ids], weights), gamma), 0
    )
    np.testing.assert_array_equal(chain_rule(gradient, gamma), gradient)


# --- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alpha": (np.nan, 0.5)}, "alpha has 1 entries that are not finite"),
        ({"alpha": (1.0,)}, "give one weight per predictor"),
        ({"f": (0.4, 0.4)}, "sums to 0.8"),
        ({"f": (1.4, -0.4)}, "no negative entry"),
        ({"f": (0.4, 0.3, 0.3)}, "3 frequencies or weights, but predictors of output size 2"),
        ({"tables": np.eye(2, dtype=int)}, "must be floating point"),
    ],
)
def test_bad_input_of_a_density_loss(changed, message):
    given = {
        "alpha": (0.5, 0.5),
        "tables": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "f": (0.4, 0.6),
    } | changed
    for loss in (log_loss, squared_loss_density):
        refused(lambda: loss(*map(np.array, given.values())), message)


HALF = np.full(2, 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda budget=budget, sampling=sampling: inclusion(
                    np.full(4, 0.25), budget, sampling
                ),
                f"budget = {budget}, but there are 4 predictors: choose a number above 0",
            )
            for budget in [0, -1, 5, np.nan, np.inf]
            for sampling in ["uniform", "weighted"]
        ),
        (
            lambda: squared_loss(HALF, np.ones((2, 3, 4)), np.ones((3, 5)), np.full(3, 1 / 3)),
            "targets have shape",
        ),
        (lambda: inclusion(HALF, 1, "weigthed"), "did you mean 'weighted'"),
        (lambda: inclusion([0.5, np.nan], 1), "alpha has 1 entries that are not finite"),
        (lambda: inclusion([0.5, 0.4], 1), r"sums to 0\.9"),
        (lambda: draw_independent([0.5, 1.5], np.random.default_rng(0)), "gamma"),
        (lambda: draw_independent([0.0, 0.0], np.random.default_rng(0)), "gamma"),
        (lambda: draw_exact([0.9, 0.9], 1, np.random.default_rng(0)), "but the budget is 1"),
        (lambda: squared_norms(np.ones((2, 3, 4))), "with weights"),
    ],
)
def test_bad_budgets_and_other_input_are_refused(call, message):
    refused(call, message)


# --- what a client remembers ----------------------------------------------------------


def test_equals_a_plain_least_recently_used_cache():
    rng = np.random.default_rng(0)
    held, cache = [], OrderedDict()
    for _ in range(300):
        used = [str(k) for k in rng.choice(12, rng.integers(0, 6), replace=False)]
        held = remember(held, used, 5)
        for key in used:
            cache[key] = True
            cache.move_to_end(key)
        while len(cache) > 5:
            cache.popitem(last=False)
        assert held == list(cache)
