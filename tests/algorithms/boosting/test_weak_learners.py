"""Oracles: closed forms, the loss that each minimises, stacked learners equal learners
one by one, determinism, divergence.
"""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from fedapps.algorithms.boosting import oracle as oracles
from fedapps.algorithms.boosting.regression import Diverged, FitOptions
from fedapps.algorithms.boosting.weak_learners import (
    NetOptions,
    NetOracle,
    RidgeOracle,
    Target,
    combined,
    gradient_gap,
    points_between,
)
from fedapps.algorithms.common.modules import widest
from tests.helpers import refused, small_net


def rng(seed=0):
    return np.random.default_rng(seed)


def problem(n=60, dim=4, outputs=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 1, dim, generator=generator), torch.randn(
        n, outputs, generator=generator
    )


def side_by_side(learners):
    return {
        name: torch.tensor(np.stack([learner[name] for learner in learners]))
        for name in learners[0]
    }


def conv_net(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 2)
        )


@pytest.mark.parametrize("batch", [16_000_000, 5])
def test_networks_side_by_side_are_networks_one_by_one(batch, monkeypatch):
    monkeypatch.setattr(oracles, "BATCH", batch)
    oracle, x = (
        NetOracle(conv_net),
        torch.randn(11, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
    )
    nets = [conv_net(seed).eval() for seed in range(5)]
    learners = [{name: t.numpy() for name, t in net.state_dict().items()} for net in nets]
    torch.testing.assert_close(
        oracle.predict(side_by_side(learners), x), torch.stack([net(x) for net in nets])
    )
    assert widest(oracle.module, x) == 3 * 36


def test_ridge_is_scikit_learns():
    x, y = problem()
    oracle = RidgeOracle(2.5)
    learners = [oracle.fit(x, Target(y), rng()), oracle.fit(x, Target(2 * y), rng())]
    reference = Ridge(alpha=2.5).fit(x.flatten(1).numpy(), y.numpy())
    np.testing.assert_allclose(learners[0]["weight"], reference.coef_.T, atol=1e-5)
    result = oracle.predict(side_by_side(learners), x)
    np.testing.assert_allclose(result[0], reference.predict(x.flatten(1).numpy()), atol=1e-5)
    torch.testing.assert_close(result[1], 2 * result[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(combined(oracle, learners)(x), result.sum(0))


def fitted(kind, x, target, steps=400, hidden=16, **more):
    oracle = NetOracle(
        lambda seed: small_net(seed, hidden=hidden),
        NetOptions(kind, FitOptions(steps=steps, learning_rate=0.01, clip=0.0), **more),
    )
    learner = oracle.fit(x, target, rng())
    return oracle.predict(side_by_side([learner]), x)[0], oracle, learner


def test_the_linf_oracle_lowers_the_worst_error():
    x, y = problem()
    errors = {kind: (fitted(kind, x, Target(y))[0] - y).norm(dim=1) for kind in ("l2", "linf")}
    assert float(errors["linf"].max()) < 0.9 * float(errors["l2"].max())
    assert float(errors["linf"].square().mean()) > float(errors["l2"].square().mean())


def test_the_lipschitz_oracle_lowers_the_error_of_the_gradients():
    x, w = problem()[0][:20], torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    points, gaps = points_between(x, 500, rng(5)), {}

    def u(x):
        return torch.tanh(x.flatten(1) @ w)

    for weight in (0.0, 1.0):
        _, oracle, learner = fitted(
            "lipschitz", x, Target(u(x), u), steps=300, hidden=32, sobolev=weight
        )
        net = combined(oracle, [learner])
        gaps[weight] = np.mean(
            [float(gradient_gap(net, u, points, rng(seed)).detach()) for seed in range(5)]
        )
    assert gaps[1.0] < 0.5 * gaps[0.0]


def test_the_gradient_gap_is_that_of_the_jacobians():
    a, b = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    x = torch.randn(10, 4).double()
    mean = np.mean([float(gradient_gap(a, b, x, rng(seed)).detach()) for seed in range(1000)])
    assert mean == pytest.approx(float((a.weight - b.weight).detach().square().sum()), rel=0.1)


def test_points_lie_between_samples():
    points = points_between(torch.tensor([[0.0], [1.0]]), 1000, rng())
    assert 0 <= float(points.min()) < 0.1 < 0.9 < float(points.max()) <= 1


@pytest.mark.parametrize("kind", ["l2", "linf"])
def test_a_learner_that_diverged_is_an_error(kind):
    x, y = problem()
    options = NetOptions(kind, FitOptions(steps=30, learning_rate=1e30, clip=0.0))
    refused(
        lambda: NetOracle(small_net, options).fit(x, Target(y), rng()), "the fit diverged", Diverged
    )


def test_what_oracles_refuse():
    x, y = problem()
    oracle = NetOracle(small_net, NetOptions("lipschitz"))
    refused(lambda: oracle.fit(x, Target(y), rng()), "only ffgb-l has")
    refused(lambda: NetOptions("lin"), "did you mean 'linf'")
    refused(lambda: RidgeOracle().fit(x * torch.nan, Target(y), rng()), "ridge", Diverged)
