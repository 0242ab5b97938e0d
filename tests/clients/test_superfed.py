"""Exams of SuPerFed's client: reductions, gradients against autograd, and what leaves
the client.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from fedapps.clients import FedAvgClient, FedProxClient, SuPerFedClient, to_client_app
from fedapps.clients.base.evaluation import Objective
from fedapps.clients.base.training import TrainOptions, get_arrays
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid, FedAvg, SuPerFed, SuPerFedOptions
from fedapps.strategies.superfed import collected
from tests.helpers import EchoClient, arrays_of, assert_arrays, blobs, simulate, small_net

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


def test_a_client_answers_with_its_losses_and_takes_the_lambda_that_it_is_sent():
    """The curve is that of an evaluation; the exported net is the scored mixture."""
    sent = get_arrays(small_net(5))
    client, data = lambda_client()
    alone = client.evaluate(sent, CONFIG)[2]
    asked = client.evaluate(sent, {**CONFIG, "superfed-lambda": -1.0})[2]
    assert asked == {
        "candidate-losses": pytest.approx(alone["lambda-validation-loss"], rel=1e-5),
        "validation-samples": 40,
    }
    other = 0.3 if alone["lambda"] != 0.3 else 0.4
    reported = client.evaluate(sent, {**CONFIG, "superfed-lambda": other})[2]
    assert reported["lambda"] == other
    assert reported["accuracy"] == alone["lambda-accuracy"][round(10 * other)]
    tensors, metrics = client.personal_state_dict(sent, {**CONFIG, "superfed-lambda": other})
    assert metrics == reported
    _, _, scores = FedAvgClient(small_net, data).evaluate(
        [t.numpy() for t in tensors.values()], CONFIG
    )
    assert scores["accuracy"] == reported["accuracy"]


@pytest.mark.parametrize(("end", "place"), [(0.0, 11), (1.0, 12)])
def test_a_model_at_an_end_of_the_line_may_be_trained_before_use(end, place):
    """As FedProx's client trains theta_f or theta_l in the round. Nothing is kept."""
    sent = get_arrays(small_net(5))
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
