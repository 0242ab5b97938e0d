import numpy as np
import pytest
import torch

from fedapps.algorithms.boosting.distillation import Distiller
from fedapps.algorithms.boosting.regression import (
    Adam,
    Diverged,
    FitOptions,
    divergence,
    fit_network,
)
from fedapps.algorithms.common.modules import get_arrays
from tests.helpers import assert_arrays, refused


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


def test_a_fit_that_diverged_says_so():
    x, y = problem()
    refused(
        lambda: fit_network(linear(0), x, y / 0, FitOptions(), np.random.default_rng(0)),
        r"learning-rate = 0\.001",
        Diverged,
    )
    with pytest.raises(Diverged):  # the one step spoils the net, which no loss has seen
        fit_network(
            linear(0),
            x,
            y * 1e38,
            FitOptions(steps=1, learning_rate=1e39, clip=0),
            np.random.default_rng(0),
        )


def test_targets_must_match():
    x, y = problem()
    for call, message in (
        (
            lambda: fit_network(linear(0), x, y[1:], FitOptions(), np.random.default_rng(0)),
            "40 inputs and 39 targets",
        ),
        (
            lambda: fit_network(linear(0), x, y[:, :1], FitOptions(), np.random.default_rng(0)),
            r"outputs of shape \(40, 2\), but targets of shape \(40, 1\)",
        ),
        (lambda: FitOptions(loss="l2"), "loss = 'l2': "),
    ):
        refused(lambda: call(), message)


# --- distillation ---------------------------------------------------------------------


def points(n=60):
    return torch.tensor(np.random.default_rng(9).normal(size=(n, 3)), dtype=torch.float32)


def test_a_distiller_needs_inputs():
    refused(lambda: Distiller(torch.nn.Linear(3, 2), points(0)), "at least one")


def test_evaluation_leaves_running_statistics_alone():
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    arrays = get_arrays(net)
    Distiller(net, points() + 5).outputs(arrays)
    assert_arrays(get_arrays(net), arrays)
