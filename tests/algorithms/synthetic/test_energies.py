"""Energies against finite differences and the mixture's density, the contrast's sign on
a toy, samples of a known mixture.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedapps.algorithms.synthetic.energies import (
    energies_and_gradients,
    energy,
    joint_loss,
    langevin_step,
)
from fedapps.algorithms.synthetic.mixture import (
    log_weights,
    mixture_gradient,
    server_step,
    step_size,
)


def smooth_net(seed=0, inputs=2, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, classes))


def test_gradients_are_the_slopes_of_the_energies():
    net, rng = smooth_net().double(), np.random.default_rng(0)
    x, y = torch.tensor(rng.normal(size=(5, 2))), torch.tensor([0, 1, 2, 0, 1])
    values, gradients = energies_and_gradients(net, x, y, batch_size=2)
    for row in range(5):
        torch.testing.assert_close(values[row], -net(x[row])[y[row]].detach())
        for k in range(2):
            ends = []
            for sign in (1, -1):
                moved = x[row].clone()
                moved[k] += sign * 1e-5
                ends.append(-float(net(moved)[y[row]]))
            assert gradients[row, k] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def test_a_langevin_step_goes_down_the_energy_within_its_bounds():
    net, x, y = smooth_net(), torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    before, gradient = energies_and_gradients(net, x, y)
    after = langevin_step(net, x, y, torch.zeros_like(x), 0.01, 0.0, 3.0, -9.0, 9.0)
    torch.testing.assert_close(after, x - 0.01 * gradient)
    assert (energies_and_gradients(net, after, y)[0] < before).all()
    far = langevin_step(net, x, y, torch.zeros_like(x), 100.0, 0.0, 0.001, -9.0, 9.0)
    assert (far - x).abs().max() <= 0.1 + 1e-6  # entries are clipped before the step
    assert langevin_step(
        net, x, y, torch.full_like(x, 50.0), 1.0, 1.0, 3.0, 0.0, 1.0
    ).unique().tolist() == [1.0]


class Bowl(nn.Module):
    """Energy |x|^2 / 2 of its one class: exp(-E) is the unit Gaussian."""

    def forward(self, x):
        return -(x**2).sum(1, keepdim=True) / 2


def test_a_clients_langevin_steps_sample_the_density_of_its_energy():
    """Noise sqrt(2 beta) for steps beta gives the variance 1 / (1 - beta / 2)."""
    beta, draw = 0.1, torch.Generator().manual_seed(0)
    x, y = torch.zeros(4000, 2), torch.zeros(4000, dtype=torch.long)
    for _ in range(60):
        normal = torch.randn(x.shape, generator=draw)
        x = langevin_step(Bowl(), x, y, normal, beta, math.sqrt(2 * beta), 50.0, -50.0, 50.0)
    # 8,000 draws: the standard error is 1.6 % of the variance
    assert float(x.var()) == pytest.approx(1 / (1 - beta / 2), rel=0.06)
    assert float(x.mean()) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_contrast_lowers_the_energy_of_data_and_raises_that_of_samples(sign):
    """With the sign that the paper prints (-1 here) it is the other way round."""
    rng = np.random.default_rng(1)
    real = (
        torch.tensor(rng.normal(2.0, 0.3, (64, 2)), dtype=torch.float32),
        torch.zeros(64, dtype=torch.long),
    )
    moved, y = (
        torch.tensor(rng.normal(-2.0, 0.3, (64, 2)), dtype=torch.float32),
        torch.zeros(64, dtype=torch.long),
    )
    net = smooth_net(2)

    def energies():
        return float(energy(net(real[0]), real[1]).mean()), float(energy(net(moved), y).mean())

    before = energies()
    optimiser = torch.optim.SGD(net.parameters(), 0.05)
    for _ in range(20):
        contrast = joint_loss(net, real, moved, moved, y, 0.0) - functional.cross_entropy(
            net(real[0]), real[1]
        )
        optimiser.zero_grad()
        (sign * contrast).backward()
        optimiser.step()
    data, samples = (sign * (now - then) for now, then in zip(energies(), before, strict=True))
    assert data < -0.5
    assert samples > 0.5


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
        np.exp(log_weights(energies)), [math.e, math.e, 1, 1 / math.e, 1 / math.e], rtol=1e-6
    )
    np.testing.assert_allclose(log_weights(energies, "exponential"), -energies, rtol=1e-6)
    with pytest.raises(ValueError, match="weights = 'raw'"):
        log_weights(energies, "raw")


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


def test_the_servers_steps_sample_the_mixture_of_two_gaussian_clients():
    """Two clients with known energies |x - m_i|^2 / 2 and shares 1 : 3; beta and delta
    = sqrt(2 beta) make Langevin's chain.
    """
    m, shares, beta, rng = (
        np.array([[-1.0, 0.5], [1.0, 0.0]]),
        [0.25, 0.75],
        0.1,
        np.random.default_rng(0),
    )
    x = rng.standard_normal((4000, 2)).astype(np.float32)
    for _ in range(300):
        gradients = [x - centre for centre in m]
        logs = [log_weights((gradient**2).sum(1) / 2, "exponential") for gradient in gradients]
        gradient = mixture_gradient(logs, gradients, shares)
        x = server_step(
            x, gradient, rng.standard_normal(x.shape), beta, math.sqrt(2 * beta), -50, 50
        )
    mean = shares[0] * m[0] + shares[1] * m[1]
    covariance = np.eye(2) / (1 - beta / 2)  # what steps of this length make of a unit Gaussian
    for share, centre in zip(shares, m, strict=True):
        covariance = covariance + share * np.outer(centre - mean, centre - mean)
    np.testing.assert_allclose(x.mean(0), mean, atol=0.06)
    np.testing.assert_allclose(np.cov(x.T), covariance, atol=0.12)


def test_a_client_that_finds_a_sample_unlikely_never_pulls_it_alone():
    """Client 0 has no sample of the class, so its score is negative: its pull is at
    most its share.
    """
    rng, shares = np.random.default_rng(0), [5.0, 1.0, 4.0]
    # the result then holds the weights themselves
    gradients = [np.eye(3)[i][None] for i in range(3)]
    for _ in range(50):
        logs = [np.array([-1.0]), *rng.integers(-1, 2, (2, 1)).astype(float)]
        pulls = mixture_gradient(logs, gradients, shares)[0]
        assert pulls.sum() == pytest.approx(1)
        assert pulls[0] <= shares[0] / sum(shares) + 1e-12
        assert pulls[0] / pulls[1] == pytest.approx(
            shares[0] / shares[1] * math.exp(-1 - logs[1][0])
        )


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
    assert x.tolist() == [[0.75], [0.0], [0.5]]
    assert x.dtype == np.float32
