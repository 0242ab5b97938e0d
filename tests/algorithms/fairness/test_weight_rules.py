import itertools

import numpy as np
import pytest
import torch

from fedapps.algorithms.fairness.responses import CDFS, decision_gradient, decision_loss, respond
from fedapps.algorithms.fairness.weight_rules import (
    ProjectedAscent,
    exponentiate,
    lipschitz_step,
    min_norm_in_box,
    powers,
    tilt,
)
from tests.helpers import refused
from tests.simplexes import least_on_simplex

SIZES = np.array([120.0, 30.0, 400.0, 55.0])
LOSSES = np.array([0.31, 2.4, 0.08, 1.1])


def unit(p):
    return p / p.sum()


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        # Table 3.2: FedAvg, q-FedAvg, TERM and PropFair in closed form, from one rule
        (lambda: exponentiate(SIZES, np.zeros(4)), unit(SIZES)),
        (lambda: exponentiate(SIZES, 1.7 * np.log(LOSSES)), unit(SIZES * LOSSES**1.7)),
        (lambda: exponentiate(SIZES, LOSSES, 1 / 0.6), unit(SIZES * np.exp(0.6 * LOSSES))),
        (lambda: exponentiate(SIZES, -np.log(3.0 - LOSSES)), unit(SIZES / (3.0 - LOSSES))),
        (lambda: powers(LOSSES, 1.7, SIZES), unit(SIZES * LOSSES**1.7)),
        (lambda: tilt(LOSSES, 0.6, SIZES), unit(SIZES * np.exp(0.6 * LOSSES))),
        (lambda: tilt(LOSSES, 0.6), unit(np.exp(0.6 * LOSSES))),
        # from the prior to the largest loss; losses of zero
        (lambda: powers(LOSSES, 0, SIZES), unit(SIZES)),
        (lambda: powers(LOSSES, 1e4, SIZES), [0, 1, 0, 0]),
        (lambda: powers([0, 1, 0, 1], 2, SIZES), [0, 30 / 85, 0, 55 / 85]),
        (lambda: powers(np.zeros(4), 2, SIZES), unit(SIZES)),
        (lambda: tilt(LOSSES, 0), np.full(4, 0.25)),
        (lambda: tilt(LOSSES, 1e-12), np.full(4, 0.25)),
        (lambda: tilt(LOSSES, -1e-12, SIZES), unit(SIZES)),
        (lambda: tilt(LOSSES, 1e3), [0, 1, 0, 0]),
        (lambda: tilt(LOSSES, -1e3), [0, 0, 1, 0]),
        (lambda: tilt([2.0, 2.0, 1.0], 1e300), [0.5, 0.5, 0]),
    ],
)
def test_weights_in_closed_form(call, wanted):
    np.testing.assert_allclose(call(), wanted, rtol=1e-11, atol=1e-12)


def test_the_rule_is_the_minimum_of_3_1():
    """-<p, r> + step * (relative entropy to the last decision), by a general solver."""
    last, r, step = unit(SIZES), LOSSES, 0.8
    optimum = least_on_simplex(
        lambda p: -p @ r + step * (p * np.log(p / last)).sum(),
        lambda p: -r + step * (np.log(p / last) + 1),
        [(1e-9, 1)] * 4,
    )
    np.testing.assert_allclose(exponentiate(last, r, step), optimum, atol=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 5.0])
def test_q_fedavgs_step_is_the_quotient_of_the_paper(q):
    """w <- w - sum F^q Delta / sum h with Delta = -L u and h = q F^(q-1) |Delta|^2 + L
    F^q, along one coordinate.
    """
    lipschitz, u = 4.0, np.array([0.3, -0.1, 0.7, 0.2])
    h = q * LOSSES ** (q - 1) * (lipschitz * u) ** 2 + lipschitz * LOSSES**q
    printed = lipschitz * (LOSSES**q @ u) / h.sum()
    shares = powers(LOSSES, q)
    assert lipschitz_step(shares, LOSSES, u**2, q, lipschitz) * (shares @ u) == pytest.approx(
        printed, rel=1e-12
    )


@pytest.mark.parametrize("lambda_", [-1e30, -1.0, 1e-300, 1.0, 1e30])
@pytest.mark.parametrize(
    "losses", [[0.0] * 3, [1e30] * 3, [0.0, 1e30, 1.0], [1e30], [1e308, 1e-308, 0.0]]
)
def test_tilting_extreme_losses(losses, lambda_):
    with np.errstate(invalid="raise", over="raise"):
        weights = tilt(losses, lambda_)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    if len(set(losses)) == 1:
        np.testing.assert_allclose(weights, 1 / len(losses))


def test_afl_projects_on_the_simplex():
    climbed = 0.25 + 0.1 * LOSSES
    optimum = least_on_simplex(
        lambda p: 0.5 * ((p - climbed) ** 2).sum(), lambda p: p - climbed, [(0, 1)] * 4
    )
    np.testing.assert_allclose(
        ProjectedAscent(4, step=0.1).decide(np.arange(4), LOSSES), optimum, atol=1e-7
    )


def test_afls_step_of_a_sample_is_that_of_all_in_expectation():
    """Times the share of the clients that is drawn, and (m - 1) K / (m (K - 1)) for the
    mean that is the sample's own.
    """
    steps = []
    for pair in itertools.combinations(range(4), 2):
        rule = ProjectedAscent(4, step=0.01)
        rule.decide(np.array(pair), LOSSES[list(pair)])
        steps.append(rule.p - 0.25)
    np.testing.assert_allclose(
        np.mean(steps, axis=0), 0.01 * 2 / 4 * (4 / 6) * (LOSSES - LOSSES.mean()), atol=1e-12
    )


def test_afl_with_a_sample_climbs_there_and_projects_all():
    rule = ProjectedAscent(4, step=0.5)
    # 0.5 times the distance from the sample's mean, 0.2; the others stay.
    np.testing.assert_allclose(rule.decide(np.array([2, 0]), np.array([0.4, 0.0])), [0.7, 0.3])
    np.testing.assert_allclose(rule.p, [0.15, 0.25, 0.35, 0.25])
    rule.p = np.array([0.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(rule.decide(np.array([0, 3]), np.zeros(2)), [0.5, 0.5])


def test_joining_and_leaving():
    rule = ProjectedAscent(4, 0.1)
    rule.decide(np.arange(4), LOSSES)
    before = rule.p
    rule.add(2)
    np.testing.assert_allclose(rule.p, np.append(before, [0.25, 0.25]) / 1.5)
    rule.drop(np.array([1, 4]))
    np.testing.assert_allclose(rule.p, unit(np.array([before[0], before[2], before[3], 0.25])))


@pytest.mark.parametrize("radius", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("count", [3, 30])
def test_the_shortest_mixture_is_a_certified_minimum(count, radius):
    rng = np.random.default_rng(3)
    # of 30, more updates than dimensions: the Gram matrix is singular
    updates, static = rng.normal(size=(count, 12)) + 0.3, rng.dirichlet(np.ones(count))
    gram = updates @ updates.T
    w = min_norm_in_box(gram, static, radius)
    assert w.sum() == pytest.approx(1, abs=1e-12)
    assert (w >= 0).all()
    assert (np.abs(w - static) <= radius + 1e-9).all()
    # Frank-Wolfe gap: the slope of the best feasible direction, found greedily, bounds
    # what is left to gain.
    slope, v = gram @ w, np.maximum(static - radius, 0)
    room = np.minimum(static + radius, 1) - v
    for k in np.argsort(slope):
        v[k] += min(room[k], 1 - v.sum())
    assert slope @ (w - v) <= 1e-7 * gram.diagonal().max()


def test_known_shortest_mixtures():
    unequal = [[1.0, 0.0], [0.0, 3.0]]
    for gram, static, radius, wanted in (
        (unequal, [0.5, 0.5], 1.0, [0.75, 0.25]),
        (unequal, [0.5, 0.5], 0.1, [0.6, 0.4]),
        (unequal, [0.3, 0.7], 0.0, [0.3, 0.7]),
        ([[1.0, -1.0], [-1.0, 1.0]], [0.9, 0.1], 1.0, [0.5, 0.5]),
        (np.ones((3, 3)), np.full(3, 1 / 3), 1.0, np.full(3, 1 / 3)),
        (np.zeros((3, 3)), [0.2, 0.3, 0.5], 1.0, [0.2, 0.3, 0.5]),
        ([[2.0]], [1.0], 0.5, [1]),
        # A box narrower than rounding: the static weights, or as good as them.
        (np.eye(3), [0.1, 0.2, 0.7], 1e-18, [0.1, 0.2, 0.7]),
    ):
        np.testing.assert_allclose(min_norm_in_box(gram, static, radius), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["static", "uniform"])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_scale_of_the_updates_does_not_matter(scale, name):
    rng = np.random.default_rng(4)
    gram = np.cov(rng.normal(size=(5, 40)))
    static = rng.dirichlet(np.ones(5)) if name == "static" else np.full(5, 0.2)
    np.testing.assert_allclose(
        min_norm_in_box(scale * gram, static, 0.3), min_norm_in_box(gram, static, 0.3), atol=1e-8
    )


# --- responses ------------------------------------------------------------------------


TABLE_3_3 = {
    "weibull": (0.05, 1.00, 0.19),
    "frechet": (0.01, 0.65, 0.11),
    "gumbel": (0.12, 0.76, 0.18),
    "exponential": (0.21, 0.90, 0.37),
    "logistic": (0.32, 0.79, 0.37),
    "normal": (0.22, 0.90, 0.29),
}


def test_the_eighteen_numbers_of_table_3_3():
    assert set(TABLE_3_3) == set(CDFS)
    for cdf, printed in TABLE_3_3.items():
        # The table comes from inputs of two figures, as the text prints them.
        np.testing.assert_array_equal(
            CDFS[cdf](np.array([0.23, 2.31, 0.46])).round(2), printed, err_msg=cdf
        )
        # From the losses themselves all are the same but Normal's third, 0.2951.
        result = respond([0.01, 0.10, 0.02], cdf, 0.0, 1.0).round(2)
        np.testing.assert_array_equal(
            result, (0.22, 0.90, 0.30) if cdf == "normal" else printed, err_msg=cdf
        )


@pytest.mark.parametrize("cdf", CDFS)
def test_a_distribution_function_rises_from_0_to_1(cdf):
    values = CDFS[cdf](np.linspace(0, 60, 2001))
    assert (np.diff(values) >= 0).all()
    assert (np.diff(values[:100]) > 0).all()
    assert 0 <= values[0] < 0.3
    assert 0.98 < values[-1] <= 1


@pytest.mark.parametrize("cdf", CDFS)
def test_only_ratios_of_losses_count_and_the_range_is_moved_linearly(cdf):
    losses = np.random.default_rng(1).lognormal(size=9)
    r = respond(losses, cdf, 0.0, 1.0)
    np.testing.assert_allclose(respond(losses * 1e20, cdf, 0.0, 1.0), r, rtol=1e-12)
    np.testing.assert_allclose(respond(losses, cdf, 0.25, 0.75), 0.25 + 0.5 * r, rtol=1e-12)
    assert (np.argsort(r) == np.argsort(losses)).all()


@pytest.mark.parametrize("cdf", CDFS)
@pytest.mark.parametrize(
    "losses",
    [
        [0.0] * 4,
        [1e30] * 4,
        [1.7e308] * 4,
        [0.0, 1e30, 0.0],
        [5e-324, 0.0],
        [1e308, 1e-308, 0.0],
        [0.0],
        [1e30],
        [1.0],
    ],
)
def test_extreme_losses_have_finite_responses_within_the_range(cdf, losses):
    with np.errstate(over="raise", invalid="raise"):
        r = respond(losses, cdf, 0.1, 0.3)
    assert r.shape == (len(losses),)
    assert ((r >= 0.1) & (r <= 0.3)).all()
    if len(set(losses)) == 1:
        np.testing.assert_allclose(r, respond([1.0], cdf, 0.1, 0.3)[0])


def test_the_gradient_is_that_of_autograd_and_within_lemma_3_1():
    rng = np.random.default_rng(2)
    for low, high in ((0.0, 1.0), (0.5, 2.0), (0.0, 0.05)):
        p, r = rng.dirichlet(np.ones(7)), rng.uniform(low, high, 7)
        variable = torch.tensor(p, requires_grad=True)
        loss = -torch.log(1 + variable @ torch.tensor(r))
        loss.backward()
        assert decision_loss(p, r) == pytest.approx(loss.item(), rel=1e-12)
        np.testing.assert_allclose(decision_gradient(p, r), variable.grad.numpy(), rtol=1e-12)
        assert np.abs(decision_gradient(p, r)).max() <= high / (1 + low)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponentiate([0.0, 0.0], [1, 1]), "not all 0"),
        (lambda: exponentiate([-1.0, 2.0], [1, 1]), "weights >= 0"),
        (lambda: exponentiate([1.0], [1, 1]), "one row each"),
        (lambda: exponentiate([1.0, 1.0], [1, np.nan]), "NaN or inf"),
        (lambda: exponentiate([1.0, 1.0], [1, np.inf]), "NaN or inf"),
        (lambda: exponentiate([1.0], [1], 0.0), "step = 0"),
        (lambda: tilt([-1.0], 1), "losses hold -1"),
        (lambda: tilt([1.0], np.nan), "lambda = nan"),
        (lambda: powers([np.nan], 1), "losses hold nan"),
        (lambda: powers([1.0], -1), "q = -1"),
        (lambda: ProjectedAscent(0, 1), "count = 0"),
        (lambda: ProjectedAscent(2, 1, cap=0.5), "cap = 0.5: choose 0"),
        (lambda: ProjectedAscent(2, -1), "step = -1"),
        (lambda: ProjectedAscent(2, 1).drop([0, 1]), "at least one must stay"),
        (lambda: ProjectedAscent(2, 1).decide([0, 1], [1.0, -1.0]), "losses hold -1"),
        (lambda: min_norm_in_box(np.eye(3), [0.5, 0.5], 0.1), "must be 2 x 2"),
        (lambda: min_norm_in_box([[1, np.nan], [0, 1]], [0.5, 0.5], 0.1), "finite"),
        (lambda: min_norm_in_box(np.eye(2), [0.5, 0.6], 0.1), "sums to 1.1"),
        (lambda: min_norm_in_box(np.eye(2), [0.5, 0.5], -0.1), "radius"),
        *(
            (
                lambda losses=losses, cdf=cdf, low=low, high=high: respond(losses, cdf, low, high),
                message,
            )
            for losses, cdf, low, high, message in [
                ([1.0], "wiebull", 0, 1, "did you mean 'weibull'"),
                ([1.0], "normal", 0.5, 0.5, "C1 < C2"),
                ([1.0], "normal", 0.6, 0.5, "low .C1. = 0.6 and high .C2. = 0.5"),
                ([1.0], "normal", -0.1, 0.5, "low .C1. = -0.1"),
                ([1.0, -2.0], "normal", 0, 1, "losses hold -2"),
                ([1.0, np.nan], "normal", 0, 1, "losses hold nan"),
                ([1.0, np.inf], "normal", 0, 1, "losses hold inf"),
                ([], "normal", 0, 1, "at least one"),
                ([[1.0]], "normal", 0, 1, "one row"),
            ]
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    refused(call, message)
