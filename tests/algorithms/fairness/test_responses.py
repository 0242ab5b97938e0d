import math

import numpy as np
import pytest
import torch

from fedapps.algorithms.fairness.responses import CDFS, decision_gradient, decision_loss, respond

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
    ("losses", "cdf", "low", "high", "message"),
    [
        ([1.0], "wiebull", 0, 1, "did you mean 'weibull'"),
        ([1.0], "normal", 0.5, 0.5, "C1 < C2"),
        ([1.0], "normal", 0.6, 0.5, "low .C1. = 0.6 and high .C2. = 0.5"),
        ([1.0], "normal", -0.1, 0.5, "low .C1. = -0.1"),
        ([1.0, -2.0], "normal", 0, 1, "losses hold -2"),
        ([1.0, math.nan], "normal", 0, 1, "losses hold nan"),
        ([1.0, math.inf], "normal", 0, 1, "losses hold inf"),
        ([], "normal", 0, 1, "at least one"),
        ([[1.0]], "normal", 0, 1, "one row"),
    ],
)
def test_bad_input(losses, cdf, low, high, message):
    with pytest.raises(ValueError, match=message):
        respond(losses, cdf, low, high)
