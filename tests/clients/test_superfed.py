"""Exams of SuPerFed's client: reductions, gradients against autograd, and what leaves the client."""

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from clients import FedAvgClient, SuPerFedClient, to_client_app
from clients.base.evaluation import Objective
from clients.base.training import TrainOptions, get_arrays
from fedapps.engines.inline import InlineGrid
from strategies import FedAvg, SuPerFed, SuPerFedOptions
from strategies.superfed import one_for_all
from tests.helpers import arrays_of, blobs, simulate, small_net

INITIAL = {name: t.numpy().copy() for name, t in small_net(5).state_dict().items()}
CONFIG = {"local-epochs": 2, "batch-size": 10, "seed": 3}


def superfed(i, _, kind=SuPerFedClient):
    return kind(small_net, blobs(seed=i, shift=i), i)


def fedavg():
    return arrays_of(simulate(FedAvg(), lambda i, _: FedAvgClient(small_net, blobs(seed=i, shift=i), i), 3, INITIAL, 4, CONFIG))


class AtZero(SuPerFedClient):
    def lambda_source(self, config, num_layers):
        return lambda: [0.0] * num_layers


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_lambda_nu_mu_zero_is_fedavg_to_the_last_bit(start):
    """start = 1: never mixes. start = 0: the mixing code itself, with every lambda drawn as 0."""
    strategy = SuPerFed(SuPerFedOptions(mu=0.0, nu=0.0, start=start))
    result = arrays_of(simulate(strategy, lambda i, c: superfed(i, c, AtZero), 3, INITIAL, 4, CONFIG))
    for name, want in fedavg().items():
        np.testing.assert_array_equal(result[name], want)


def test_mu_alone_is_fedprox():
    from clients import FedProxClient
    from strategies import FedProx, FedProxOptions

    strategy = SuPerFed(SuPerFedOptions(mu=0.3, nu=0.0, start=0.0))
    got = arrays_of(simulate(strategy, lambda i, c: superfed(i, c, AtZero), 3, INITIAL, 4, CONFIG))
    clients = [FedProxClient(small_net, blobs(seed=i, shift=i), i) for i in range(3)]
    want = arrays_of(simulate(FedProx(FedProxOptions(0.3)), lambda i, _: clients[i], 3, INITIAL, 4, CONFIG))
    for name in INITIAL:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=1e-7)


LAMBDAS = {"model": [0.3, 0.3], "layer": [0.9, 0.1], "close to the ends": [0.0004, 0.9997], "at the ends": [0.0, 1.0]}


@pytest.mark.parametrize("lambdas", LAMBDAS.values(), ids=LAMBDAS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_equal_autograd_on_the_printed_loss(lambdas, momentum):
    """Partial batches; theta_l goes on where the first round left it, momentum starts anew."""
    mu, nu, rate = 0.7, 1.3, 0.05

    class Fixed(SuPerFedClient):
        def lambda_source(self, config, num_layers):
            assert num_layers == 2
            return lambda: lambdas

    data = blobs(seed=1)
    options = {"learning-rate": rate, "momentum": momentum, "weight-decay": 0.01, "local-epochs": 2, "batch-size": 14}
    config = {**options, "proximal-mu": mu, "superfed-nu": nu, "superfed-mixing": "layer", "lr-decay": 1.0}
    client = Fixed(small_net, data, 4)
    sent, net = get_arrays(small_net(5)), small_net(5).double()
    names = [name for name, _ in net.named_parameters()]
    own = client.fresh_arrays("personal", config, own=True)
    p = {name: torch.tensor(a, dtype=torch.float64).requires_grad_() for name, a in zip(names, own, strict=True)}
    weight = {name: lambdas[0] if name.startswith("1.") else lambdas[1] for name in names}
    for server_round in (1, 2):
        received, _, _ = client.fit([a.copy() for a in sent], {**config, "server-round": server_round})
        start = {name: torch.tensor(a, dtype=torch.float64) for name, a in zip(names, sent, strict=True)}
        f = {name: t.clone().requires_grad_() for name, t in start.items()}
        optimiser = torch.optim.SGD([*f.values(), *p.values()], lr=rate, momentum=momentum, weight_decay=0.01)
        for x, y in client.batches(TrainOptions.from_config(config), {**config, "server-round": server_round}):
            mixed = {name: (1 - weight[name]) * f[name] + weight[name] * p[name] for name in names}
            flat_f, flat_p = (torch.cat([t.reshape(-1) for t in side.values()]) for side in (f, p))
            prox = sum(((f[n] - start[n]) ** 2).sum() for n in names)
            cosine = (flat_f @ flat_p) ** 2 / ((flat_f @ flat_f) * (flat_p @ flat_p) + 1e-12)
            optimiser.zero_grad()
            (functional.cross_entropy(functional_call(net, mixed, x.double()), y) + mu / 2 * prox + nu * cosine).backward()
            optimiser.step()
        kept = client.store.load("personal", config, before=False)
        for got, want in zip(received + kept, [*f.values(), *p.values()], strict=True):
            np.testing.assert_allclose(got, want.detach(), rtol=2e-4, atol=5e-6)
        sent = [a + np.float32(0.01) for a in received]


def test_the_personal_model_never_leaves_and_persists():
    """Every array in every message is compared with every client's personal model."""
    messages = []

    class Spy(InlineGrid):
        def send_and_receive(self, sent, *, timeout=None):
            sent = list(sent)
            replies = super().send_and_receive(sent, timeout=timeout)
            messages.extend(sent + replies)
            return replies

    grid = Spy(to_client_app(lambda c: superfed_with_state(c)), 3)

    def superfed_with_state(context):
        from clients import MessageStore

        i = context.node_config["partition-id"]
        return SuPerFedClient(small_net, blobs(seed=i), i, MessageStore(context.state))

    kept = []
    remember = lambda now: kept.append([c.state["store.personal"]["0"].numpy().copy() for c in grid.contexts.values()])  # noqa: E731
    simulate(SuPerFed(SuPerFedOptions(start=0.0)), None, 3, INITIAL, 3, CONFIG, grid=grid, callbacks=[remember])
    personal = [array for round_ in kept for array in round_]
    assert not np.array_equal(kept[0][0], kept[0][1])  # own initialisations
    assert not np.array_equal(kept[0][0], kept[2][0])  # trained further each round
    arrays = [a.numpy() for m in messages for record in m.content.array_records.values() for a in record.values()]
    assert len(arrays) > 40
    assert not any(a.shape == p.shape and np.allclose(a, p) for a in arrays for p in personal)


def test_before_the_start_round_nothing_is_mixed():
    client = SuPerFedClient(small_net, blobs(), 0)
    strategy = SuPerFed(SuPerFedOptions(start=0.5))
    mixing = [strategy.train_options(t, 4)["superfed-mixing"] for t in (1, 2, 3, 4)]
    assert mixing == ["none", "none", "model", "model"]
    client.fit(list(INITIAL.values()), {**CONFIG, "superfed-mixing": "none"})
    assert client.store.load("personal", CONFIG, before=False) is None


def test_evaluation_chooses_lambda_on_validation_only():
    """Two models right on opposite labels: validation prefers one end, the test set the other."""
    data = blobs(seed=2, n=200)
    sent = get_arrays(train_net(data.train))
    client = SuPerFedClient(small_net, data, 0)
    client.store.save("personal", get_arrays(small_net(77)), {"server-round": 1})
    _, n, metrics = client.evaluate(sent, {"server-round": 1})
    assert n == len(data.test)
    assert metrics["lambda-grid"][0] == 0
    assert metrics["lambda-grid"][-1] == 1
    assert metrics["accuracy"] == metrics["lambda-accuracy"][round(metrics["lambda"] * 10)]
    assert metrics["global-accuracy"] == metrics["lambda-accuracy"][0]
    assert metrics["half-accuracy"] == metrics["lambda-accuracy"][5]
    assert metrics["oracle-accuracy"] == max(metrics["lambda-accuracy"])
    flipped = SuPerFedClient(small_net, type(data)(data.train, type(data.test)(data.test.x, 2 - data.test.y), data.test), 0)
    flipped.store = client.store
    _, _, other = flipped.evaluate(sent, {"server-round": 1})
    assert other["lambda"] != metrics["lambda"]  # the choice follows validation labels
    assert other["lambda-accuracy"] == metrics["lambda-accuracy"]  # the scores are the test set's


@pytest.mark.parametrize(
    ("accuracies", "losses", "chosen"),
    [
        ([0.5] * 11, [2.0] * 7 + [1.0] + [2.0] * 3, 0.7),  # equally right everywhere: the lowest loss
        ([0.5] * 4 + [0.6] * 2 + [0.5] * 5, [1.0] * 4 + [3.0, 2.9] + [1.0] * 5, 0.5),  # two are more often right than the others
        ([0.5] * 11, [1.0] * 11, 0.0),  # a tie in both: as federated as can be
    ],
)
def test_lambda_is_chosen_by_accuracy_then_loss_on_validation(accuracies, losses, chosen):
    data, calls = blobs(), []

    def score(_, split):
        if split.y is not data.validation.y:
            return {"accuracy": 0.1, "loss": 0.0}
        calls.append(split)
        return {"accuracy": accuracies[len(calls) - 1], "loss": losses[len(calls) - 1]}

    client = SuPerFedClient(small_net, data, 0, objective=Objective(functional.cross_entropy, score))
    assert client.evaluate(list(INITIAL.values()), CONFIG)[2]["lambda"] == chosen
    assert len(calls) == 11


def train_net(split):
    net = small_net(9)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        functional.cross_entropy(net(split.x), split.y).backward()
        optimiser.step()
    return net


def test_state_of_another_architecture_is_refused():
    client = SuPerFedClient(small_net, blobs(), 6)
    client.store.save("personal", [np.zeros((2, 2), np.float32)], {"server-round": 1})
    with pytest.raises(ValueError, match="client 6 keeps a personal model of another architecture"):
        client.evaluate(list(INITIAL.values()), {"server-round": 1})


def test_an_evaluation_is_the_same_with_the_first_layer_computed_once(monkeypatch):
    client = superfed(0, None)
    parameters = [array + 0.1 for array in INITIAL.values()]
    loss, count, found = client.evaluate(parameters, CONFIG)
    monkeypatch.setattr("clients.superfed.SharedFirstLayer.of", lambda *_: None)
    assert (pytest.approx(loss, abs=1e-6), count) == client.evaluate(parameters, CONFIG)[:2]
    for name, value in client.evaluate(parameters, CONFIG)[2].items():
        assert found[name] == pytest.approx(value, abs=1e-6), name


def test_one_lambda_for_all_is_chosen_on_validation_and_scored_on_test():
    """Two clients by hand: their validation losses, weighted by samples, are least at the second; test scores do not matter."""
    one = {"lambda-grid": [0.0, 0.5, 1.0], "lambda-accuracy": [0.9, 0.5, 0.8], "lambda-validation-loss": [1.0, 2.0, 3.0]}
    two = {**one, "lambda-accuracy": [0.9, 0.7, 0.8], "lambda-validation-loss": [3.0, 1.0, 2.0]}
    few, many = {**one, "validation-samples": 10}, {**two, "validation-samples": 30}
    assert one_for_all([few, many]) == {"pooled-accuracy": pytest.approx(0.6), "pooled-lambda": 0.5}
    assert one_for_all([{**few, "validation-samples": 90}, many])["pooled-lambda"] == 0.0
    strange = [{}, {**few, "lambda-accuracy": [0.9]}, {**few, "lambda-validation-loss": [0.0, float("nan"), 0.0]}]
    strange += [{**few, "validation-samples": -5}, {**few, "lambda-grid": 3.0}, {**few, "validation-samples": [1]}]
    assert one_for_all([few, many, *strange, {**few, "lambda-grid": [0.0, 0.1, 0.2]}]) == one_for_all([few, many])
    assert one_for_all(strange) == {}


def test_a_run_reports_it():
    strategy = SuPerFed(SuPerFedOptions(start=0.0))
    result = simulate(strategy, superfed, 3, INITIAL, 2, CONFIG)
    last = result.evaluate_metrics_clientapp[2]
    assert last["pooled-accuracy"] == strategy.own_measures["pooled-accuracy"]
    assert last["pooled-lambda"] in last["lambda-grid"]
    assert last["pooled-accuracy"] == pytest.approx(last["lambda-accuracy"][round(10 * last["pooled-lambda"])])  # equal test sets
