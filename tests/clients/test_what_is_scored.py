"""Which model a client is scored with, and what APFL, SCAFFOLD and pFedMe compute under
momentum and with partial batches.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fedapps.clients import (
    APFLClient,
    ClientData,
    FedAvgClient,
    LocalClient,
    PFedMeClient,
    PropFairClient,
    ScaffoldClient,
    Split,
    SuPerFedClient,
)
from fedapps.clients.base.evaluation import score
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.clients.pfedme import repeated
from tests.helpers import assert_arrays, blobs, refused, small_net
from tests.quadratics import Scalar

CONFIG = {
    "learning-rate": 0.05,
    "lr-decay": 1.0,
    "momentum": 0.9,
    "weight-decay": 0.01,
    "batch-size": 14,
    "local-epochs": 2,
    "seed": 3,
}


def scores_of(arrays, data, build=small_net):
    loss, _, metrics = FedAvgClient(build, data).evaluate(arrays, CONFIG)
    return loss, metrics["accuracy"]


def test_apfl_is_scored_at_alpha_v_plus_one_minus_alpha_w():
    data, w, v = blobs(1, n=200), get_arrays(small_net(1)), get_arrays(small_net(2))
    client = APFLClient(small_net, data)
    client.store.save("apfl", [*v, np.array([0.2])], CONFIG)
    _, _, metrics = client.evaluate(w, {**CONFIG, "apfl-alpha": 0.9})
    want, other = (
        scores_of([(1 - alpha) * a + alpha * b for a, b in zip(w, v, strict=True)], data)
        for alpha in (0.2, 0.8)
    )
    assert (metrics["loss"], metrics["accuracy"]) == pytest.approx(want, abs=1e-6)
    assert abs(want[0] - other[0]) > 0.01
    assert metrics["apfl-alpha"] == 0.2
    assert (metrics["global-loss"], metrics["global-accuracy"]) == pytest.approx(scores_of(w, data))


@pytest.mark.parametrize("classes", [2, 3, 5, 6])
def test_the_accuracy_of_the_five_best_is_scored_if_there_are_more_classes(classes):
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)), torch.arange(30)
    net = torch.nn.Linear(4, classes)
    scores = score(net, Split(x, y % classes))
    assert ("top5" in scores) == (classes == 6)
    if classes == 6:
        worst = net(x).argmin(1)
        assert scores["top5"] == pytest.approx(float((worst != y % 6).double().mean()))


def test_local_is_scored_with_what_it_trained():
    data, client = blobs(1), LocalClient(small_net, blobs(1), 1)
    start = client.fresh_arrays("model", CONFIG, own=False)
    for server_round in (1, 2):
        config = {**CONFIG, "server-round": server_round}
        client.fit([], config)
        loss, _, metrics = client.evaluate(start, config)
        assert (loss, metrics["accuracy"]) == scores_of(
            client.store.load("model", config, before=False), data
        )
        assert abs(loss - scores_of(start, data)[0]) > 0.05
        # the server's model, which nobody trained, has no score
        assert not [name for name in metrics if name.startswith("global-")]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_of_apfl_equal_autograd(momentum):
    """w descends at w, v at the mixture along alpha times its gradient, both with
    momentum from 0, on the same batches.
    """
    config = {**CONFIG, "momentum": momentum, "apfl-alpha": 0.3, "apfl-adaptive": False}
    client, net = APFLClient(small_net, blobs(1), 4), small_net(5).double()
    names = [name for name, _ in net.named_parameters()]
    sent = get_arrays(small_net(5))
    v = [torch.tensor(a, dtype=torch.float64).requires_grad_() for a in sent]
    for server_round in (1, 2):
        now = {**config, "server-round": server_round}
        got, _, _ = client.fit([a.copy() for a in sent], now)
        w = [torch.tensor(a, dtype=torch.float64).requires_grad_() for a in sent]
        optimiser = torch.optim.SGD([*w, *v], lr=0.05, momentum=momentum, weight_decay=0.01)
        for x, y in client.batches(TrainOptions.from_config(config), now):
            optimiser.zero_grad()
            for point in (w, [0.3 * b + 0.7 * a.detach() for a, b in zip(w, v, strict=True)]):
                functional.cross_entropy(
                    functional_call(net, dict(zip(names, point, strict=True)), x.double()), y
                ).backward()
            optimiser.step()
        kept = client.store.load("apfl", config, before=False)
        assert_arrays([*got, *kept[:-1]], [*w, *v], rtol=0.0002, atol=5e-06)
        sent = [a + np.float32(0.01) for a in got]


class Slope(ScaffoldClient):
    """A client whose loss is ``3 w``: whatever K is, the mean direction of its steps is
    3.
    """

    def loss(self, x, y):
        return 3 * self.model.w.sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffolds_variate_is_the_gradient_where_it_is_constant(momentum):
    """Seven samples in batches of three, two epochs: K = 6 steps, of which two are
    partial.
    """

    split = Split(torch.zeros(7, 1), torch.zeros(7, dtype=torch.int64))
    client = Slope(lambda seed: Scalar(), ClientData(split, split, split))
    config = {**CONFIG, "momentum": momentum, "weight-decay": 0.0, "batch-size": 3}
    _, direction = client.fit([np.float32([1.0]), np.float32([0.0])], config)[0]
    (kept,) = client.store.load("control", config, before=False)
    assert [direction[0], kept[0]] == pytest.approx([3.0, 3.0], rel=1e-5)


# --- normalisation layers: running statistics belong to a mixture's own parameters ----


def normalised(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        linear, norm = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)
        net = torch.nn.Sequential(
            torch.nn.Flatten(),
            linear,
            norm,
            torch.nn.ReLU(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(8, 3),
        )
        norm.running_mean.normal_()
        norm.weight.data.normal_()
        return net


def at(weight, data):
    """Return the test loss of the mixture with the statistics of all training samples,
    by hand; the net's dropout is off.
    """
    net, (a, b) = normalised(1), (normalised(seed) for seed in (1, 2))
    for p, q, r in zip(net.parameters(), a.parameters(), b.parameters(), strict=True):
        p.data = (1 - weight) * q.data + weight * r.data
    with torch.no_grad():
        hidden = net[1](torch.flatten(data.train.x, 1))
        net[2].running_mean, net[2].running_var = hidden.mean(0), hidden.var(0)
        return float(functional.cross_entropy(net.eval()(data.test.x), data.test.y))


def client_between(kind, name, *more):
    """Return a client that keeps another net, its data, and the arrays of the net that
    it is sent.
    """
    data = blobs(1, n=100)
    client = kind(normalised, data, 1)
    client.store.save(
        name, [*[p.detach().numpy() for p in normalised(2).parameters()], *more], CONFIG
    )
    return client, data, get_arrays(normalised(1))


def test_superfeds_mixtures_have_statistics_of_their_own():
    client, data, sent = client_between(SuPerFedClient, "personal")
    _, _, result = client.evaluate(sent, CONFIG)
    assert result["lambda-loss"] == pytest.approx(
        [result["global-loss"], *(at(i / 10, data) for i in range(1, 11))], rel=1e-4
    )
    assert result["global-loss"] == scores_of(sent, data, normalised)[0]
    assert abs(at(0.0, data) - result["global-loss"]) > 0.01
    # the same again: nothing is left of the estimates
    assert client.evaluate(sent, CONFIG)[2] == result


@pytest.mark.parametrize("value", [None, 0.0, 0.3, 1.0])
def test_an_exported_mixture_has_its_own_statistics_and_the_received_model_keeps_its(value):
    client, data, sent = client_between(SuPerFedClient, "personal")
    tensors, result = client.personal_state_dict(
        sent, CONFIG if value is None else {**CONFIG, "superfed-lambda": value}
    )
    loss = scores_of([t.numpy() for t in tensors.values()], data, normalised)[0]
    chosen = result["lambda"]
    assert loss == pytest.approx(at(chosen, data) if chosen else result["global-loss"], rel=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_apfls_mixture_has_statistics_of_its_own(alpha):
    client, data, sent = client_between(APFLClient, "apfl", np.array([alpha]))
    loss, _, metrics = client.evaluate(sent, {**CONFIG, "apfl-alpha": 0.1})
    assert loss == pytest.approx(at(alpha, data) if alpha else metrics["global-loss"], rel=1e-4)


# --- pFedMe: Algorithm 1, and the form that costs as much as FedAvg ------------------

MOREAU = {
    **CONFIG,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "pfedme-lambda": 8.0,
    "pfedme-inner-steps": 4,
    "pfedme-rate": 0.1,
}


@pytest.mark.parametrize(("rate", "equal"), [(0.3, 1 / 0.3), (0.05, 15.0)])
def test_without_a_lambda_the_rate_bounds_it(rate, equal):
    """At rate 0.3 the paper's 15 is refused: w would jump beyond theta."""
    sent = get_arrays(small_net(5))
    config = {**MOREAU, "learning-rate": rate, "pfedme-rate": 0.0, "pfedme-batches": "next"}
    got, want = (
        PFedMeClient(small_net, blobs(1), 4).fit(sent, {**config, "pfedme-lambda": value})[0]
        for value in (0.0, equal)
    )
    assert_arrays(got, want)
    refused(
        lambda: PFedMeClient(small_net, blobs(1), 4).fit(
            sent, {**config, "learning-rate": 0.3, "pfedme-lambda": 15.0}
        ),
        "w would jump beyond theta",
    )


@pytest.mark.parametrize("batches", ["same", "next"])
def test_a_round_is_algorithm_1(batches):
    """In double precision, by autograd, on partial batches: theta goes on from
    mini-batch to mini-batch, w follows it; with "next" the last two of six steps are
    fewer than K, and w still follows.
    """
    config, net = {**MOREAU, "pfedme-batches": batches}, small_net(5).double()
    client, sent = PFedMeClient(small_net, blobs(1), 4), get_arrays(small_net(5))
    received, _, metrics = client.fit(sent, config)
    names = [name for name, _ in net.named_parameters()]
    w = [torch.tensor(a, dtype=torch.float64) for a in sent]
    theta = [t.clone() for t in w]
    drawn = list(client.batches(TrainOptions.from_config(config), config))
    steps = [batch for batch in drawn for _ in range(4 if batches == "same" else 1)]
    total = seen = 0.0
    for i, (x, y) in enumerate(steps):
        leaves = [t.requires_grad_() for t in theta]
        loss = functional.cross_entropy(
            functional_call(net, dict(zip(names, leaves, strict=True)), x.double()), y
        )
        gradients = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            theta = [
                t - 0.05 * (g + 8.0 * (t - b)) for t, g, b in zip(theta, gradients, w, strict=True)
            ]
            if (i + 1) % 4 == 0 or i + 1 == len(steps):
                w = [b - 0.1 * 8.0 * (b - t) for b, t in zip(w, theta, strict=True)]
        total, seen = total + float(loss.detach()) * len(y), seen + len(y)
    assert_arrays(
        received + client.store.load("pfedme", config, before=False),
        w + theta,
        rtol=0.0002,
        atol=5e-06,
    )
    assert metrics["loss"] == pytest.approx(total / seen, rel=1e-4)


@pytest.mark.parametrize("n", [3, 8, 11])
def test_repeated_mini_batches_are_cut_where_the_plain_ones_are(n):
    x = torch.arange(n)
    parts = [
        part
        for x_, y in repeated((pair for pair in [(x, x)]), 4, 3, nn.Identity())
        for part in x_.split(4)
        if torch.equal(x_, y)
    ]
    want = [part for part in x.split(4) for _ in range(3)]
    assert len(parts) == len(want)
    assert all(torch.equal(a, b) for a, b in zip(parts, want, strict=True))


# --- propfair -------------------------------------------------------------------------


def slope(loss, m):
    """Return value and derivative of PropFair's loss."""
    value = torch.tensor(loss, dtype=torch.float64, requires_grad=True)
    out = PropFairClient(small_net, blobs()).surrogate({"propfair-m": m})(value)
    return out.item(), torch.autograd.grad(out, value)[0].item()


@pytest.mark.parametrize("loss", [0.0, 0.5, 1.7, 1.8])
def test_inside_it_is_the_logarithm(loss):
    value, gradient = slope(loss, 2.0)
    assert value == pytest.approx(-math.log(1 - loss / 2))
    assert gradient == pytest.approx(1 / (2 - loss))


@pytest.mark.parametrize("loss", [1.8, 1.9, 2.0, 50.0, 1e6])
def test_near_and_above_m_it_goes_on_as_the_tangent(loss):
    value, gradient = slope(loss, 2.0)
    assert value == pytest.approx(-math.log(0.1) + (loss - 1.8) / 0.2)
    assert gradient == pytest.approx(1 / 0.2)


def test_the_loss_itself_is_reported():
    sent, config = get_arrays(small_net(1)), {"learning-rate": 1e-9, "propfair-m": 2.0}
    plain, ours = (
        kind(small_net, blobs()).fit(sent, config)[2] for kind in (FedAvgClient, PropFairClient)
    )
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-4)
