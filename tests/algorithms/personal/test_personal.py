"""What clients have for themselves: choices by losses, mixing weights, points of a
simplex.
"""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from fedapps.algorithms.common.modules import outputs_of
from fedapps.algorithms.personal import simplex
from fedapps.algorithms.personal.choice import counted, least, pooled_curve, shrunk
from fedapps.algorithms.personal.mixing import (
    cosine_squared_gradient,
    draw_lambda,
    layer_of,
)
from fedapps.algorithms.personal.shared_layer import SharedFirstLayer
from fedapps.algorithms.personal.simplex import Projection, nearest
from fedapps.models.image_nets import build_model


def clients(rng, tau, sigma, samples, grid=11):
    """Return the curves of clients and the true ones: per-sample noise sigma^2, own
    deviation tau^2, over the grid.
    """
    common = np.linspace(-1, 1, grid) ** 2
    truth = [common + rng.normal(0, tau / np.sqrt(grid - 1), grid) for _ in samples]
    return np.array(truth) + [
        rng.normal(0, sigma / np.sqrt((grid - 1) * n), grid) for n in samples
    ], np.array(truth)


def test_the_shrunk_curve_is_nearer_to_the_truth_than_either():
    """k = sigma^2 / tau^2 = 16."""
    rng, samples = np.random.default_rng(1), np.array([7, 20, 55] * 100)
    curves, truth = clients(rng, 0.5, 2.0, samples)
    pooled = pooled_curve(curves, samples)

    def error(k):
        result = [shrunk(c, pooled, n, k) for c, n in zip(curves, samples, strict=True)]
        return sum(((f - t + t.mean()) ** 2).sum() for f, t in zip(result, truth, strict=True))

    assert error(16.0) < 0.8 * min(error(0.0), error(np.inf))
    assert error(16.0) < min(error(4.0), error(64.0))


def test_limits_and_levels():
    own, pooled = np.array([3.0, 1.0, 2.0]), np.array([100.0, 103.0, 106.0])
    assert (least(shrunk(own, pooled, 12, 0.0)), least(shrunk(own, pooled, 12, np.inf))) == (1, 0)
    assert shrunk(own, pooled, 12, 12.0) == pytest.approx([-1.0, -0.5, 1.5])  # levels do not matter
    # 36 samples beside k = 12: three quarters of (1, -1, 0), one of (-3, 0, 3)
    assert shrunk(own, pooled, 36, 12.0) == pytest.approx([0.0, -0.75, 0.75])
    np.testing.assert_allclose(shrunk(own + 7, pooled - 9, 12, 12.0), shrunk(own, pooled, 12, 12.0))


def test_the_least_loss_then_the_most_right_then_the_first():
    assert least(np.array([2.0, 1.0, 1.0, 1.0]), np.array([0.9, 0.5, 0.6, 0.6])) == 2
    assert (least(np.array([np.nan, 5.0])), least(np.array([np.nan, np.inf]))) == (1, 0)


def test_one_client_does_not_choose_for_all():
    rng, samples = np.random.default_rng(3), np.array([30] * 20)
    curves, _ = clients(rng, 0.5, 1.0, samples)
    honest = pooled_curve(curves[1:], samples[1:].astype(float))
    for lie in (1e12, -1e12):
        curves[0] = lie * np.linspace(0, 1, 11)
        assert honest[
            least(pooled_curve(curves, samples.astype(float)))
        ] - honest.min() < 0.05 * np.ptp(honest)
        claimed = counted(curves, np.array([9e14, *samples[1:]]))
        assert honest[least(pooled_curve(curves, claimed))] - honest.min() < 0.05 * np.ptp(honest)
        np.testing.assert_array_equal(claimed[1:], samples[1:])
    flat = np.zeros((3, 11))
    flat[0] = np.linspace(0, 1, 11)
    # nothing to compare it with
    np.testing.assert_allclose(pooled_curve(flat, np.ones(3)), (flat[0] - 0.5) / 3, atol=1e-12)


# --- mixing ---------------------------------------------------------------------------


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


# --- simplex --------------------------------------------------------------------------

# Points of a simplex for clients: on the simplex, nearest, spread, and independent of
# the scale of the updates.


RNG = np.random.default_rng(0)
SIGNALS = RNG.normal(size=(12, 30)) + np.repeat(RNG.normal(0, 5, (3, 30)), 4, axis=0)


@pytest.mark.parametrize("z", [0.1, 1.0, 7.0])
def test_the_nearest_points_are_those_of_a_brute_force_search(z):
    kappa = RNG.normal(size=(5, 3))
    grid = np.array([(a, b, 200 - a - b) for a in range(201) for b in range(201 - a)]) / 200
    for point, found in zip(kappa, nearest(kappa, z), strict=True):
        np.testing.assert_allclose(
            found, grid[((grid * z - point) ** 2).sum(1).argmin()], atol=0.01
        )


def test_points_are_on_the_simplex_and_clients_alike_are_neighbours():
    points = Projection.of(SIGNALS, 4).points(SIGNALS)
    assert points.shape == (12, 4)
    assert (points >= 0).all()
    np.testing.assert_allclose(points.sum(1), 1)
    centres = points.reshape(3, 4, 4).mean(1)
    between = min(np.linalg.norm(centres[a] - centres[b]) for a, b in [(0, 1), (0, 2), (1, 2)])
    assert np.linalg.norm(points - np.repeat(centres, 4, axis=0), axis=1).max() < between / 2


def test_the_points_do_not_depend_on_the_scale_or_on_a_common_part():
    points = Projection.of(SIGNALS, 4).points(SIGNALS)
    moved = 1e-3 * SIGNALS + 5.0
    np.testing.assert_allclose(Projection.of(moved, 4).points(moved), points, atol=1e-6)


def test_the_chosen_scale_spreads_the_clients_most():
    """By the energy of the source; at a tiny scale all are at corners, at a huge one in
    the centre.
    """

    def energy(points):
        first, second = np.triu_indices(len(points), 1)
        return (1 / ((points[first] - points[second]) ** 2).sum(1).clip(1e-8)).sum()

    found = Projection.of(SIGNALS, 4)
    kappa = (SIGNALS - found.mean) @ found.axes.T
    for factor in (0.01, 0.5, 2, 50):
        assert energy(nearest(kappa, found.z)) <= energy(nearest(kappa, found.z * factor))


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_clients_than_corners(count):
    """The other axes are empty; one client alone is in the centre."""
    points = Projection.of(SIGNALS[:count], 4).points(SIGNALS[:count])
    np.testing.assert_allclose(points.sum(1), 1)
    if count == 1:
        np.testing.assert_allclose(points, 0.25)


def test_of_many_clients_some_decide_and_all_have_points(monkeypatch):
    """More clients are not more work by the square."""
    monkeypatch.setattr(simplex, "MOST", 50)
    many = np.tile(SIGNALS, (20, 1)) + RNG.normal(0, 0.01, (240, 30))
    found, of_some = (
        Projection.of(many, 4),
        Projection.of(many[np.linspace(0, 239, 50).astype(int)], 4),
    )
    np.testing.assert_array_equal(found.axes, of_some.axes)
    assert found.z == of_some.z
    points = found.points(many)
    assert points.shape == (240, 4)
    np.testing.assert_allclose(points.sum(1), 1)


# --- a first layer that a line of nets shares -----------------------------------------

# Computed at the ends only: equal to computing net by net, and not used for nets where
# it would differ.


class Shifted(nn.Module):
    """A net with a parameter before the first layer."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.shift, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x + self.shift)


class Tied(nn.Module):
    """A net that uses the first layer's weights again."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu() @ self.layer.weight.T


def image_net(name):
    return lambda seed: build_model(name, (1, 8, 8), 3, seed)


def line(net, inputs):
    model = net(0)
    ends = [[p.detach().clone() for p in net(seed).parameters()] for seed in (1, 2)]
    mixed = [p.detach() for p in model.parameters()]
    return model, mixed, ends, SharedFirstLayer.of(model, mixed, *ends, inputs)


@pytest.mark.parametrize("name", ["logistic", "mlp", "two-nn"])
def test_outputs_along_the_line_are_those_of_the_mixed_nets(name):
    inputs = [
        torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (5, 1027)
    ]
    model, mixed, (federated, personal), shared = line(image_net(name), inputs)
    assert shared is not None
    for value in (0.0, 0.3, 1.0):
        for i, (out, f, p) in enumerate(zip(mixed, federated, personal, strict=True)):
            out.fill_(float("nan")) if i in shared.at else torch.lerp(f, p, value, out=out)
        result = shared.outputs(value)
        torch._foreach_copy_(
            mixed, [torch.lerp(f, p, value) for f, p in zip(federated, personal, strict=True)]
        )
        for out, x in zip(result, inputs, strict=True):
            torch.testing.assert_close(out, outputs_of(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "net",
    [Shifted, Tied, image_net("two-cnn"), image_net("resnet9")],
    ids=["shift", "tied", "cnn", "resnet9"],
)
def test_a_net_whose_first_layer_does_not_stand_alone_is_computed_as_usual(net):
    x = torch.randn(6, 4) if isinstance(net, type) else torch.randn(6, 1, 8, 8)
    assert line(net, [x])[3] is None


def test_the_net_is_itself_again_afterwards():
    x = torch.randn(6, 1, 8, 8)
    model, _, _, shared = line(image_net("mlp"), [x])
    wanted = outputs_of(model, x)
    shared.outputs(0.5)
    torch.testing.assert_close(outputs_of(model, x), wanted)
    assert all("forward" not in vars(module) for module in model.modules())
