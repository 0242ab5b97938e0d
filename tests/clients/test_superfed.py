"""Exams of SuPerFed's client: reductions, gradients against autograd, and what leaves
the client; which model clients are scored with.
"""

import math
from dataclasses import replace
from functools import partial

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
    FedProxClient,
    LocalClient,
    PFedMeClient,
    PropFairClient,
    ScaffoldClient,
    Split,
    SuPerFedClient,
    to_client_app,
)
from fedapps.clients.base.evaluation import Objective, score
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.clients.pfedme import repeated
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, FedAvg, SuPerFed, SuPerFedOptions
from fedapps.strategies.superfed import collected
from tests.helpers import EchoClient, arrays_of, assert_arrays, blobs, refused, simulate, small_net
from tests.quadratics import Scalar

INITIAL = {name: t.numpy().copy() for name, t in small_net(5).state_dict().items()}
CONFIG = {"local-epochs": 2, "batch-size": 10, "seed": 3}


def superfed(i, _, kind=SuPerFedClient):
    return kind(small_net, blobs(seed=i, shift=i), i)


def run(strategy, kind=SuPerFedClient, rounds=4, **options):
    return simulate(strategy, partial(superfed, kind=kind), 3, INITIAL, rounds, CONFIG, **options)


def always(*lambdas):
    """Return a class of clients that draw these lambdas."""

    class Always(SuPerFedClient):
        def lambda_source(self, config, num_layers):
            return lambda: lambdas[:1] * num_layers if len(lambdas) == 1 else lambdas

    return Always


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_lambda_nu_mu_zero_is_fedavg_to_the_last_bit(start):
    """start = 1: never mixes. start = 0: the mixing code itself, with every lambda
    drawn as 0.
    """
    assert_arrays(
        arrays_of(run(FedAvg(), FedAvgClient)),
        arrays_of(run(SuPerFed(SuPerFedOptions.printed(mu=0.0, nu=0.0, start=start)), always(0.0))),
    )


LAMBDAS = {
    "model": [0.3, 0.3],
    "layer": [0.9, 0.1],
    "close to the ends": [0.0004, 0.9997],
    "at the ends": [0.0, 1.0],
}


@pytest.mark.parametrize("lambdas", LAMBDAS.values(), ids=LAMBDAS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_two_rounds_equal_autograd_on_the_printed_loss(lambdas, momentum, scale):
    """Partial batches; theta_l goes on where the first round left it, momentum starts
    anew; the scale is of the loss alone.
    """
    mu, nu, rate = 0.7, 1.3, 0.05
    config = {
        "learning-rate": rate,
        "lr-decay": 1.0,
        "momentum": momentum,
        "weight-decay": 0.01,
        "local-epochs": 2,
        "batch-size": 14,
        "proximal-mu": mu,
        "superfed-nu": nu,
        "superfed-mixing": "layer",
        "superfed-step-scale": scale,
    }
    client = always(*lambdas)(small_net, blobs(seed=1), 4)
    sent, net = get_arrays(small_net(5)), small_net(5).double()
    names = [name for name, _ in net.named_parameters()]
    own = client.fresh_arrays("personal", config, own=True)
    p = {
        name: torch.tensor(a, dtype=torch.float64).requires_grad_()
        for name, a in zip(names, own, strict=True)
    }
    weight = {name: lambdas[0] if name.startswith("1.") else lambdas[1] for name in names}
    for server_round in (1, 2):
        now = {**config, "server-round": server_round}
        received, _, _ = client.fit([a.copy() for a in sent], now)
        start = {
            name: torch.tensor(a, dtype=torch.float64) for name, a in zip(names, sent, strict=True)
        }
        f = {name: t.clone().requires_grad_() for name, t in start.items()}
        optimiser = torch.optim.SGD(
            [*f.values(), *p.values()], lr=rate, momentum=momentum, weight_decay=0.01
        )
        for x, y in client.batches(TrainOptions.from_config(config), now):
            mixed = {name: (1 - weight[name]) * f[name] + weight[name] * p[name] for name in names}
            flat_f, flat_p = (torch.cat([t.reshape(-1) for t in side.values()]) for side in (f, p))
            prox = sum(((f[n] - start[n]) ** 2).sum() for n in names)
            cosine = (flat_f @ flat_p) ** 2 / ((flat_f @ flat_f) * (flat_p @ flat_p) + 1e-12)
            optimiser.zero_grad()
            loss = functional.cross_entropy(functional_call(net, mixed, x.double()), y)
            (scale * loss + mu / 2 * prox + nu * cosine).backward()
            optimiser.step()
        kept = client.store.load("personal", config, before=False)
        assert_arrays(received + kept, [*f.values(), *p.values()], rtol=0.0002, atol=5e-06)
        sent = [a + np.float32(0.01) for a in received]


def test_before_mixing_no_personal_model_is_made():
    client = SuPerFedClient(small_net, blobs(), 0)
    client.fit(list(INITIAL.values()), {**CONFIG, "superfed-mixing": "none"})
    assert client.store.load("personal", CONFIG, before=False) is None


def test_evaluation_chooses_lambda_on_validation_only():
    """Two models right on opposite labels: validation prefers one end, the test set the
    other.
    """
    client, data = lambda_client()
    sent, _, _ = FedAvgClient(small_net, data).fit(
        get_arrays(small_net(9)), {"learning-rate": 0.1, "local-epochs": 20}
    )
    _, n, metrics = client.evaluate(sent, CONFIG)
    assert n == len(data.test)
    curve = metrics["lambda-accuracy"]
    assert metrics["lambda-grid"][::10] == [0, 1]
    assert {name: metrics[f"{name}accuracy"] for name in ("", "global-", "half-", "oracle-")} == {
        "": curve[round(metrics["lambda"] * 10)],
        "global-": curve[0],
        "half-": curve[5],
        "oracle-": max(curve),
    }
    client.data = replace(data, validation=replace(data.test, y=2 - data.test.y))
    _, _, other = client.evaluate(sent, CONFIG)
    assert other["lambda"] != metrics["lambda"]  # the choice follows validation labels
    assert other["lambda-accuracy"] == metrics["lambda-accuracy"]  # the scores are the test set's


@pytest.mark.parametrize(
    ("accuracies", "losses", "chosen"),
    [
        # the lowest loss, though less often right
        ([0.6] * 7 + [0.5] + [0.6] * 3, [2.0] * 7 + [1.0] + [2.0] * 3, 0.7),
        # of two, that which is more often right
        ([0.5] * 4 + [0.6] + [0.5] * 6, [2.0] * 4 + [1.0, 1.0] + [2.0] * 5, 0.4),
        ([0.5] * 5 + [0.6] + [0.5] * 5, [2.0] * 4 + [1.0, 1.0] + [2.0] * 5, 0.5),
        ([0.5] * 11, [1.0] * 11, 0.0),  # a tie in both: as federated as can be
        ([0.5] * 11, [np.nan, np.inf, *[2.0] * 8, 1.0], 1.0),  # a mixture that diverged is none
    ],
)
def test_lambda_is_chosen_by_loss_then_accuracy_on_validation(accuracies, losses, chosen):
    data, calls = blobs(), []

    def score(_, split):
        if split.y is not data.validation.y:
            return {"accuracy": 0.1, "loss": 0.0}
        calls.append(split)
        return {"accuracy": accuracies[len(calls) - 1], "loss": losses[len(calls) - 1]}

    client = SuPerFedClient(
        small_net, data, 0, objective=Objective(functional.cross_entropy, score)
    )
    assert client.evaluate(list(INITIAL.values()), CONFIG)[2]["lambda"] == chosen
    assert len(calls) == 11


def test_one_lambda_for_all_is_chosen_on_validation_and_scored_on_test():
    """Two clients by hand: their validation losses, weighted by samples, are least at
    the second; test scores do not matter.
    """
    one = {
        "lambda-grid": [0.0, 0.5, 1.0],
        "lambda-accuracy": [0.9, 0.5, 0.8],
        "lambda-validation-loss": [1.0, 2.0, 3.0],
    }
    two = {**one, "lambda-accuracy": [0.9, 0.7, 0.8], "lambda-validation-loss": [3.0, 1.0, 2.0]}
    few, many = {**one, "validation-samples": 10}, {**two, "validation-samples": 30}
    assert one_for_all([few, many]) == {"pooled-accuracy": pytest.approx(0.6), "pooled-lambda": 0.5}
    assert one_for_all([{**few, "validation-samples": 90}, many])["pooled-lambda"] == 0.0
    strange = [
        {},
        {**few, "lambda-accuracy": [0.9]},
        {**few, "lambda-validation-loss": [0.0, float("nan"), 0.0]},
        {**few, "validation-samples": -5},
        {**few, "lambda-grid": 3.0},
        {**few, "validation-samples": [1]},
    ]
    assert one_for_all(
        [few, many, *strange, {**few, "lambda-grid": [0.0, 0.1, 0.2]}]
    ) == one_for_all([few, many])
    assert one_for_all(strange) == {}


def one_for_all(metrics):
    return curves.measures() if (curves := collected(metrics)) else {}


def test_a_run_reports_it():
    strategy = SuPerFed(SuPerFedOptions(start=0.0))
    last = run(strategy, rounds=2).evaluate_metrics_clientapp[2]
    assert last["pooled-accuracy"] == strategy.own_measures["pooled-accuracy"]
    # equal test sets
    assert last["pooled-accuracy"] == pytest.approx(
        last["lambda-accuracy"][round(10 * last["pooled-lambda"])]
    )


# --- lambda by the client's curve, all clients', or the one shrunk to the other -------


def lambda_client():
    data = blobs(seed=2, n=200)
    client = SuPerFedClient(small_net, data, 0)
    client.store.save("personal", get_arrays(small_net(77)), {"server-round": 1})
    return client, data


@pytest.fixture
def sent():
    return get_arrays(small_net(5))


def test_a_client_answers_with_its_losses_and_takes_the_lambda_that_it_is_sent(sent):
    """The curve is that of an evaluation; the exported net is the scored mixture."""
    client, data = lambda_client()
    alone = client.evaluate(sent, CONFIG)[2]
    asked = client.evaluate(sent, {**CONFIG, "superfed-lambda": -1.0})[2]
    assert asked == {
        "candidate-losses": pytest.approx(alone["lambda-validation-loss"], rel=1e-5),
        "validation-samples": 40,
    }
    other = 0.3 if alone["lambda"] != 0.3 else 0.4
    reported = client.evaluate(sent, {**CONFIG, "superfed-lambda": other})[2]
    assert (reported["lambda"], reported["accuracy"]) == (
        other,
        alone["lambda-accuracy"][round(10 * other)],
    )
    tensors, metrics = client.personal_state_dict(sent, {**CONFIG, "superfed-lambda": other})
    assert metrics == reported
    _, _, scores = FedAvgClient(small_net, data).evaluate(
        [t.numpy() for t in tensors.values()], CONFIG
    )
    assert scores["accuracy"] == reported["accuracy"]


@pytest.mark.parametrize(("end", "place"), [(0.0, 11), (1.0, 12)])
def test_a_model_at_an_end_of_the_line_may_be_trained_before_use(end, place, sent):
    """As FedProx's client trains theta_f or theta_l in the round. Nothing is kept."""
    client, data = lambda_client()
    asked = client.evaluate(sent, {**CONFIG, "superfed-lambda": -1.0, "superfed-tune": 3})[2]
    assert len(asked["candidate-losses"]) == 13
    start = sent if end == 0 else get_arrays(small_net(77))
    other = FedProxClient(small_net, data, 0)
    trained, _, _ = other.fit(start, {**CONFIG, "local-epochs": 3})
    config = {**CONFIG, "superfed-lambda": end, "superfed-tune": 3}
    loss, _, reported = client.evaluate(sent, config)
    assert loss == pytest.approx(other.evaluate(trained, CONFIG)[0], rel=1e-5)
    other.data = replace(data, test=data.validation)
    loss, _, _ = other.evaluate(trained, CONFIG)
    assert asked["candidate-losses"][place] == pytest.approx(loss, rel=1e-5)
    assert (reported["lambda"], reported["tuned-epochs"]) == (end, 3)
    tensors, metrics = client.personal_state_dict(sent, config)
    assert metrics == reported
    assert_arrays(tensors.values(), trained, rtol=0.0001, atol=1e-06)
    assert_arrays(client.store.load("personal", CONFIG, False), get_arrays(small_net(77)))


@pytest.mark.parametrize("choice", ["own", "shrunk", "shared"])
def test_the_server_chooses_lambda_by_the_curves_of_this_evaluation(choice):
    """12 samples of a client count beside 12 of all clients' (shrunk)."""
    curves, chosen = {}, {}

    class Spy(SuPerFedClient):
        def evaluate(self, parameters, config):
            reply = super().evaluate(parameters, config)
            if "lambda" in reply[2]:
                curves[self.client_id] = np.array(reply[2]["lambda-validation-loss"])
                chosen[self.client_id] = reply[2]["lambda"]
            return reply

    strategy = SuPerFed(SuPerFedOptions(start=0.0, init="own", lambda_choice=choice, tune=0))
    run(strategy, Spy, 2, evaluate_every=0)
    samples = len(blobs().validation)  # of each
    centred = {i: curve - curve.mean() for i, curve in curves.items()}
    pooled = sum(centred.values()) / 3
    k = {"own": 0.0, "shrunk": 12.0, "shared": 1e12}[choice]
    for i, curve in centred.items():
        mixed = (samples * curve + k * pooled) / (samples + k)
        assert chosen[i] == pytest.approx(int(mixed.argmin()) / 10), i


# --- where theta_l starts, how far it steps, when -------------------------------------


def test_with_init_global_theta_l_starts_at_what_is_received():
    """One step at lambda = 1 from there: theta_f stays, theta_l has taken FedAvg's
    step; cos^2 = 1 has no gradient.
    """
    config = {
        **CONFIG,
        "local-epochs": 1,
        "batch-size": 100,
        "momentum": 0.0,
        "weight-decay": 0.0,
        "superfed-mixing": "model",
        "superfed-init": "global",
        "superfed-nu": 1.0,
    }
    sent, client = get_arrays(small_net(5)), always(1.0)(small_net, blobs(seed=1), 4)
    received, _, _ = client.fit(sent, config)
    want, _, _ = FedAvgClient(small_net, blobs(seed=1), 4).fit(sent, config)
    assert_arrays(received, sent, atol=1e-07)
    kept = client.store.load("personal", config, before=False)
    assert_arrays(kept, want, rtol=0.0001, atol=1e-06)
    # the second round goes on from there
    assert_arrays(client.kept({**config, "server-round": 2}, before=True), kept)


MIXED = {
    **CONFIG,
    "superfed-mixing": "model",
    "superfed-init": "global",
    "superfed-catch-up": 1,
    "server-round": 7,
}


def test_a_client_that_mixing_has_not_reached_trains_before_it_is_scored():
    """It is scored with the model that a round of one epoch would have stored, but it
    stores nothing, and every evaluation is the same.
    """
    data, sent = blobs(seed=3, n=200), get_arrays(small_net(5))
    late, other = SuPerFedClient(small_net, data, 4), SuPerFedClient(small_net, data, 4)
    other.fit(sent, {**MIXED, "local-epochs": 1})
    metrics, again, want = (one.evaluate(sent, MIXED)[2] for one in (late, late, other))
    assert metrics == again == want
    assert late.store.load("personal", MIXED, before=False) is None
    within = {**MIXED, "superfed-lambda": 0.3}  # where theta_f counts
    assert_arrays(*(one.personal_state_dict(sent, within)[0] for one in (late, other)))
    without = late.evaluate(sent, {**MIXED, "superfed-catch-up": 0})[2]
    assert metrics["lambda-loss"][-1] < without["lambda-loss"][-1]
    assert metrics["lambda-loss"][0] == without["lambda-loss"][0]  # theta_f is the received one
    before = late.evaluate(sent, {**MIXED, "superfed-mixing": "none"})[2]
    assert before["lambda-loss"] == without["lambda-loss"]


def test_mixing_starts_after_so_many_draws_a_client_or_by_the_share_of_rounds():
    """Two of four clients a round: half a draw each. The state of a checkpoint holds
    the count.
    """

    def mixings(options, rounds=8, strategy=None, first=1):
        messages = []

        class Told(EchoClient):
            def evaluate(self, parameters, config):
                self.heard(config)
                return super().evaluate(parameters, config)

        heard = lambda config: messages.append((config["server-round"], config["superfed-mixing"]))
        strategy = strategy or SuPerFed(options)
        grid = ClientGrid(
            InlineGrid(to_client_app(lambda _: Told(0, heard=heard)), 4), clients_per_round=2
        )
        simulate(strategy, None, 4, INITIAL, rounds, CONFIG, grid=grid, first_round=first)
        # training and evaluation of a round receive the same
        assert len(set(messages)) == rounds - first + 1
        return strategy, [mixing for _, mixing in sorted(set(messages))]

    for options, before in (
        (SuPerFedOptions(start=0.75, start_draws=1.5), 3),
        (SuPerFedOptions(start=0.25, start_draws=1.5), 2),
        (SuPerFedOptions(start=0.75), 6),
    ):
        assert mixings(options)[1] == ["none"] * before + ["model"] * (8 - before)
    half, _ = mixings(SuPerFedOptions(start=0.75, start_draws=2.5), rounds=2)
    resumed = SuPerFed(SuPerFedOptions(start=0.75, start_draws=2.5))
    resumed.load_state_dict(half.state_dict())
    assert mixings(None, 8, resumed, 3)[1] == ["none"] * 3 + ["model"] * 3


# --- which model a client is scored with ----------------------------------------------

# And what APFL, SCAFFOLD and pFedMe compute under momentum and with partial batches.

FEW = {
    "learning-rate": 0.05,
    "lr-decay": 1.0,
    "momentum": 0.9,
    "weight-decay": 0.01,
    "batch-size": 14,
    "local-epochs": 2,
    "seed": 3,
}


def scores_of(arrays, data, build=small_net):
    loss, _, metrics = FedAvgClient(build, data).evaluate(arrays, FEW)
    return loss, metrics["accuracy"]


def test_apfl_is_scored_at_alpha_v_plus_one_minus_alpha_w():
    data, w, v = blobs(1, n=200), get_arrays(small_net(1)), get_arrays(small_net(2))
    client = APFLClient(small_net, data)
    client.store.save("apfl", [*v, np.array([0.2])], FEW)
    _, _, metrics = client.evaluate(w, {**FEW, "apfl-alpha": 0.9})
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
    start = client.fresh_arrays("model", FEW, own=False)
    for server_round in (1, 2):
        config = {**FEW, "server-round": server_round}
        client.fit([], config)
        loss, _, metrics = client.evaluate(start, config)
        assert (loss, metrics["accuracy"]) == scores_of(
            client.store.load("model", config, before=False), data
        )
        assert abs(loss - scores_of(start, data)[0]) > 0.05
        # the server's model, which nobody trained, has no score
        assert not [name for name in metrics if name.startswith("global-")]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_of_apfl_equal_autograd(momentum, sent):
    """w descends at w, v at the mixture along alpha times its gradient, both with
    momentum from 0, on the same batches.
    """
    config = {**FEW, "momentum": momentum, "apfl-alpha": 0.3, "apfl-adaptive": False}
    client, net = APFLClient(small_net, blobs(1), 4), small_net(5).double()
    names = [name for name, _ in net.named_parameters()]
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
    config = {**FEW, "momentum": momentum, "weight-decay": 0.0, "batch-size": 3}
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
    client.store.save(name, [*[p.detach().numpy() for p in normalised(2).parameters()], *more], FEW)
    return client, data, get_arrays(normalised(1))


def test_superfeds_mixtures_have_statistics_of_their_own():
    client, data, sent = client_between(SuPerFedClient, "personal")
    _, _, result = client.evaluate(sent, FEW)
    assert result["lambda-loss"] == pytest.approx(
        [result["global-loss"], *(at(i / 10, data) for i in range(1, 11))], rel=1e-4
    )
    assert result["global-loss"] == scores_of(sent, data, normalised)[0]
    assert abs(at(0.0, data) - result["global-loss"]) > 0.01
    # the same again: nothing is left of the estimates
    assert client.evaluate(sent, FEW)[2] == result


@pytest.mark.parametrize("value", [None, 0.0, 0.3, 1.0])
def test_an_exported_mixture_has_its_own_statistics_and_the_received_model_keeps_its(value):
    client, data, sent = client_between(SuPerFedClient, "personal")
    tensors, result = client.personal_state_dict(
        sent, FEW if value is None else {**FEW, "superfed-lambda": value}
    )
    loss = scores_of([t.numpy() for t in tensors.values()], data, normalised)[0]
    chosen = result["lambda"]
    assert loss == pytest.approx(at(chosen, data) if chosen else result["global-loss"], rel=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_apfls_mixture_has_statistics_of_its_own(alpha):
    client, data, sent = client_between(APFLClient, "apfl", np.array([alpha]))
    loss, _, metrics = client.evaluate(sent, {**FEW, "apfl-alpha": 0.1})
    assert loss == pytest.approx(at(alpha, data) if alpha else metrics["global-loss"], rel=1e-4)


# --- pFedMe: Algorithm 1, and the form that costs as much as FedAvg ------------------

MOREAU = {
    **FEW,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "pfedme-lambda": 8.0,
    "pfedme-inner-steps": 4,
    "pfedme-rate": 0.1,
}


@pytest.mark.parametrize(("rate", "equal"), [(0.3, 1 / 0.3), (0.05, 15.0)])
def test_without_a_lambda_the_rate_bounds_it(rate, equal, sent):
    """At rate 0.3 the paper's 15 is refused: w would jump beyond theta."""
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
    assert (value, gradient) == pytest.approx((-math.log(1 - loss / 2), 1 / (2 - loss)))


@pytest.mark.parametrize("loss", [1.8, 1.9, 2.0, 50.0, 1e6])
def test_near_and_above_m_it_goes_on_as_the_tangent(loss):
    value, gradient = slope(loss, 2.0)
    assert (value, gradient) == pytest.approx((-math.log(0.1) + (loss - 1.8) / 0.2, 1 / 0.2))


def test_the_loss_itself_is_reported():
    sent, config = get_arrays(small_net(1)), {"learning-rate": 1e-9, "propfair-m": 2.0}
    plain, ours = (
        kind(small_net, blobs()).fit(sent, config)[2] for kind in (FedAvgClient, PropFairClient)
    )
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-4)
