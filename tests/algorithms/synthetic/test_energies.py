"""Energies against finite differences and the mixture's density; steps as printed."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn
from torch.nn import functional

from fedapps.algorithms.synthetic.energies import (
    energies_and_gradients,
    joint_loss,
    langevin_step,
)
from fedapps.algorithms.synthetic.frechet import frechet_distance
from fedapps.algorithms.synthetic.mixture import (
    log_weights,
    mixture_gradient,
    server_step,
    step_size,
)
from tests.helpers import refused


def smooth_net(seed=0, inputs=2, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, classes))


def test_gradients_are_the_slopes_of_the_energies():
    net = smooth_net()
    x, y = torch.rand(5, 2, requires_grad=True), torch.tensor([0, 1, 2, 0, 1])
    values, gradients = energies_and_gradients(net, x.detach(), y, batch_size=2)
    wanted = -net(x)[torch.arange(5), y]
    torch.testing.assert_close(values, wanted.detach())
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted.sum(), x)[0])


def test_a_langevin_step_goes_down_the_energy_within_its_bounds():
    net, x, y = smooth_net(), torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    before, gradient = energies_and_gradients(net, x, y)
    after = langevin_step(net, x, y, torch.zeros_like(x), 0.01, 0.0, 3.0, -9.0, 9.0)
    torch.testing.assert_close(after, x - 0.01 * gradient)
    noise = torch.randn(6, 2)
    torch.testing.assert_close(
        langevin_step(net, x, y, noise, 0.01, 0.5, 3.0, -9.0, 9.0), after + 0.5 * noise
    )
    assert (energies_and_gradients(net, after, y)[0] < before).all()
    assert (
        langevin_step(net, x, y, torch.zeros_like(x), 100.0, 0.0, 0.001, -9.0, 9.0) - x
    ).abs().max() <= 0.1 + 1e-6  # entries are clipped before the step
    assert langevin_step(
        net, x, y, torch.full_like(x, 50.0), 1.0, 1.0, 3.0, 0.0, 1.0
    ).unique().tolist() == [1.0]


def test_the_parts_of_the_joint_loss():
    net, lambda_ = smooth_net(), 0.3
    (x, start, moved), (labels, y) = torch.rand(3, 4, 2), torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    wanted = functional.cross_entropy(net(x), labels) + lambda_ * functional.cross_entropy(
        net(start), y
    )
    wanted = wanted + sum(-net(x)[i, labels[i]] + net(moved)[i, y[i]] for i in range(4)) / 4
    torch.testing.assert_close(joint_loss(net, (x, labels), start, moved, y, lambda_), wanted)


def test_weights_are_e_to_the_sign():
    energies = np.array([-3.0, -0.1, 0.0, 0.2, 40.0])
    np.testing.assert_allclose(
        np.exp(log_weights(energies)), [np.e, np.e, 1, 1 / np.e, 1 / np.e], rtol=1e-6
    )
    np.testing.assert_allclose(log_weights(energies, "exponential"), -energies, rtol=1e-6)
    refused(lambda: log_weights(energies, "raw"), "weights = 'raw'")


def test_the_mixtures_gradient_is_that_of_its_density():
    """-d/dx log sum_i w_i exp(-E_i) by central differences, for quadratic energies, one
    of them far too large for an exponential.
    """
    means, shares, x = np.array([-1.0, 0.5, 60.0]), np.array([3.0, 1.0, 2.0]), np.linspace(-2, 2, 9)

    def energies(at):
        return (at[None] - means[:, None]) ** 2 / 2

    def minus_log_density(at):
        return -np.log((shares[:, None] * np.exp(-energies(at))).sum(0))

    slope = (minus_log_density(x + 1e-5) - minus_log_density(x - 1e-5)) / 2e-5
    got = mixture_gradient(list(-energies(x)), list(x[None] - means[:, None]), list(shares))
    np.testing.assert_allclose(got, slope, atol=1e-6)
    shifted = mixture_gradient(
        list(5000 - energies(x)), list(x[None] - means[:, None]), list(shares)
    )
    np.testing.assert_allclose(shifted, got, atol=1e-9)  # only ratios count, and nothing overflows


def test_steps_of_the_server():
    cosine = [step_size("cosine", 10.0, 0.01, t, 101) for t in range(101)]
    assert (cosine[0], cosine[50], cosine[100]) == pytest.approx((10.0, 5.005, 0.01))
    assert np.all(np.diff(cosine) < 0)
    late = [step_size("ddpm", 10.0, 1.0, t, 500) for t in range(500)]
    assert np.all(np.diff(late) <= 0)
    # rounds of the paper's program
    for number, value in ((250, 9.94), (450, 9.65), (490, 8.44), (499, 3.25), (500, 1.0)):
        assert late[number - 1] == pytest.approx(value, abs=0.01)
    assert step_size("ddpm", 10.0, 1.0, 0, 1) == 10.0
    x = server_step(
        np.zeros((3, 1), np.float32),
        np.array([[-1.0], [0.1], [0.0]]),
        np.array([[1.0], [0.0], [2.0]]),
        0.5,
        0.25,
        0.0,
        1.0,
    )
    assert (x.tolist(), x.dtype) == ([[0.75], [0.0], [0.5]], np.float32)


# --- frechet --------------------------------------------------------------------------

# The Fréchet distance against SciPy's matrix root, closed forms and its invariances.


def features(seed, n, d=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


def test_it_is_the_formula():
    a, b = features(0, 40), features(1, 60)
    s, t = np.cov(a.T), np.cov(b.T)
    wanted = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s + t - 2 * np.real(sqrtm(s @ t)))
    assert [frechet_distance(a, b), frechet_distance(b, a)] == pytest.approx([wanted] * 2, rel=1e-6)


def test_closed_forms():
    a = features(0, 50)
    assert [
        frechet_distance(*pair) for pair in ((a, a), (a, a + 2.0), (a[:, :1], 3 * a[:, :1]))
    ] == pytest.approx([0, 5 * 4.0, 4 * (a[:, 0].mean() ** 2 + a[:, 0].var(ddof=1))], abs=1e-6)
    # covariances without full rank
    assert np.isfinite(frechet_distance(features(2, 3), a))
    refused(lambda: frechet_distance(a[:1], a), "1 and 50 samples")
