import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from fedapps.algorithms.boosting import oracle as oracles
from fedapps.algorithms.boosting.regression import (
    Adam,
    Distiller,
    Diverged,
    FitOptions,
    divergence,
    fit_network,
)
from fedapps.algorithms.boosting.weak_learners import (
    NetOptions,
    NetOracle,
    RidgeOracle,
    Target,
    combined,
    gradient_gap,
    points_between,
)
from fedapps.algorithms.common.modules import get_arrays, widest
from tests.helpers import assert_arrays, refused, small_net


def linear(seed, inputs=3, outputs=2):
    generator = torch.Generator().manual_seed(seed)
    net = torch.nn.Linear(inputs, outputs)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    return net


def problem(n=40):
    rng = np.random.default_rng(5)
    return torch.tensor(rng.normal(size=(n, 3)), dtype=torch.float32), torch.tensor(
        rng.normal(size=(n, 2)), dtype=torch.float32
    )


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.1, 0.05)])
def test_steps_are_those_of_torchs_adam(decay, clip, fused, monkeypatch):
    if not fused:  # a PyTorch without the fused operation
        monkeypatch.delattr(torch, "_fused_adam_", raising=False)
    ours, theirs = linear(0), linear(0)
    adam = Adam(decay, clip)
    state = adam.state([p.detach() for p in ours.parameters()])
    reference = torch.optim.Adam(theirs.parameters(), 0.02, weight_decay=decay)
    x, y = problem()
    for step in range(20):
        gradients = list(
            torch.autograd.grad((ours(x) - y).square().mean(), list(ours.parameters()))
        )
        adam.descend(state, gradients, 0.02, step + 1.0)
        reference.zero_grad()
        (theirs(x) - y).square().mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_linear_net_reaches_least_squares():
    x, y = problem()
    net = linear(1)
    loss = fit_network(
        net,
        x,
        y,
        FitOptions(batch_size=40, learning_rate=0.02, steps=1500),
        np.random.default_rng(0),
    )
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    best = torch.linalg.lstsq(design, y).solution
    torch.testing.assert_close(torch.cat([net.weight.T, net.bias[None]]), best, atol=1e-3, rtol=0)
    assert loss == pytest.approx(float((design @ best - y).square().mean()), rel=1e-3)


def test_epochs_are_steps_and_the_generator_alone_decides():
    x, y = problem(30)
    fits = {}
    for name, options, seed in (
        ("epochs", FitOptions(epochs=3, batch_size=8), 1),
        ("steps", FitOptions(steps=12, batch_size=8), 1),  # four batches a pass
        ("one less", FitOptions(steps=11, batch_size=8), 1),
        ("other", FitOptions(epochs=3, batch_size=8), 2),
    ):
        net = torch.nn.Sequential(torch.nn.Dropout(0.5), linear(0))
        before = torch.get_rng_state()
        fit_network(net, x, y, options, np.random.default_rng(seed))
        assert torch.equal(torch.get_rng_state(), before)
        fits[name] = net[1].weight.detach()
    assert torch.equal(fits["epochs"], fits["steps"])
    assert not torch.equal(fits["epochs"], fits["one less"])
    assert not torch.equal(fits["epochs"], fits["other"])


def test_what_it_returns_is_the_mean_over_samples_of_the_last_pass():
    x, y = problem(10)
    net = linear(0)
    loss = fit_network(
        net, x, y, FitOptions(epochs=1, batch_size=4, learning_rate=1e-12), np.random.default_rng(0)
    )
    # the last batch has two samples
    assert loss == pytest.approx(float((net(x) - y).detach().square().mean()), rel=1e-5)


def test_the_divergence_is_the_one_of_the_softmax():
    outputs, targets = (
        torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),
        torch.eye(5, 4),
    )
    p, q = targets.softmax(1), outputs.softmax(1)
    assert float(divergence(outputs, targets)) == pytest.approx(
        float((p * (p / q).log()).sum(1).mean()), rel=1e-5
    )
    assert float(divergence(targets + 3, targets)) == pytest.approx(0, abs=1e-6)


def test_a_last_step_that_spoils_the_net_is_an_error():
    x, y = problem()
    with pytest.raises(Diverged):  # no loss has seen the net
        fit_network(
            linear(0),
            x,
            y * 1e38,
            FitOptions(steps=1, learning_rate=1e39, clip=0),
            np.random.default_rng(0),
        )


# --- distillation ---------------------------------------------------------------------


def points(n=60):
    return torch.tensor(np.random.default_rng(9).normal(size=(n, 3)), dtype=torch.float32)


def test_evaluation_leaves_running_statistics_alone():
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    arrays = get_arrays(net)
    Distiller(net, points() + 5).outputs(arrays)
    assert_arrays(get_arrays(net), arrays)


# --- weak learners --------------------------------------------------------------------

# Closed forms, the loss that each oracle minimises, stacked learners equal learners one
# by one, divergence.


def rng(seed=0):
    return np.random.default_rng(seed)


def some_samples(n=60, dim=4, outputs=3):
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
    x, y = some_samples()
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
    x, y = some_samples()
    errors = {kind: (fitted(kind, x, Target(y))[0] - y).norm(dim=1) for kind in ("l2", "linf")}
    assert float(errors["linf"].max()) < 0.9 * float(errors["l2"].max())
    assert float(errors["linf"].square().mean()) > float(errors["l2"].square().mean())


def test_the_lipschitz_oracle_lowers_the_error_of_the_gradients():
    x, w = some_samples()[0][:20], torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
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


def fit_to(change):
    x, y = problem()
    return fit_network(linear(0), x, change(y), FitOptions(), np.random.default_rng(0))


def learned(oracle, scale=1.0):
    x, y = some_samples()
    return oracle.fit(x * scale, Target(y), rng())


FAR = FitOptions(steps=30, learning_rate=1e30, clip=0.0)


@pytest.mark.parametrize(
    ("call", "message", "kind"),
    [
        (lambda: fit_to(lambda y: y[1:]), "40 inputs and 39 targets", ValueError),
        (
            lambda: fit_to(lambda y: y[:, :1]),
            r"outputs of shape \(40, 2\), but targets of shape \(40, 1\)",
            ValueError,
        ),
        (lambda: fit_to(lambda y: y / 0), r"learning-rate = 0\.001", Diverged),
        (lambda: FitOptions(loss="l2"), "loss = 'l2': ", ValueError),
        (lambda: Distiller(torch.nn.Linear(3, 2), points(0)), "at least one", ValueError),
        (
            lambda: learned(NetOracle(small_net, NetOptions("lipschitz"))),
            "only ffgb-l has",
            ValueError,
        ),
        (lambda: NetOptions("lin"), "did you mean 'linf'", ValueError),
        (lambda: learned(RidgeOracle(), torch.nan), "ridge", Diverged),
        *(
            (
                lambda kind=kind: learned(NetOracle(small_net, NetOptions(kind, FAR))),
                "the fit diverged",
                Diverged,
            )
            for kind in ("l2", "linf")
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(call, message, kind):
    refused(call, message, kind)
