import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedapps.algorithms.personal.mixing import (
    cosine_squared_gradient,
    draw_lambda,
    layer_of,
)


def test_cosine_gradient_equals_autograd():
    rng = np.random.default_rng(0)
    f = torch.tensor(rng.normal(size=50), requires_grad=True)
    p = torch.tensor(rng.normal(size=50), requires_grad=True)
    ((f @ p) ** 2 / ((f @ f) * (p @ p))).backward()
    a, b, c = cosine_squared_gradient((f @ p).item(), (f @ f).item(), (p @ p).item())
    np.testing.assert_allclose((a * p - b * f).detach(), f.grad, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((a * f - c * p).detach(), p.grad, rtol=1e-9, atol=1e-12)


def test_a_model_of_zeros_has_no_angle_and_no_nan():
    assert cosine_squared_gradient(0.0, 0.0, 9.0) == (0, 0, 0)


def test_draws_are_uniform_and_shared_as_the_mixing_says():
    rng = np.random.default_rng(0)
    model = np.array([draw_lambda(rng, "model", 3) for _ in range(4000)])
    layer = np.array([draw_lambda(rng, "layer", 3) for _ in range(4000)])
    assert (model == model[:, :1]).all()
    assert abs(np.corrcoef(layer.T)[0, 1]) < 0.05
    for draws in (model[:, 0], layer.ravel()):
        assert kstest(draws, "uniform").pvalue > 1e-3
    with pytest.raises(ValueError, match="choose 'model' or 'layer'"):
        draw_lambda(rng, "both", 1)


def test_a_layer_is_the_module_that_owns_the_parameter():
    assert layer_of(
        ["conv.weight", "conv.bias", "block.0.weight", "block.1.weight", "block.1.bias", "head"]
    ) == [0, 0, 1, 2, 2, 3]
