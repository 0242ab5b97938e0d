"""SCAFFOLD, FedDyn, Ditto and FedProx of a client without PyTorch equal the torch
loops, on quadratics ``(a_i / 2) |w - b_i|^2``.
"""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from fedapps import clients
from fedapps.clients import MessageStore, answer_identity, terms, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    Ditto,
    DittoOptions,
    FedDyn,
    FedDynOptions,
    FedProx,
    FedProxOptions,
    Scaffold,
    run_rounds,
)
from tests.helpers import arrays_of

A, B = [1.0, 2.0, 4.0], [[1.0, -1.0], [0.5, 2.0], [-2.0, 0.0]]
RATE, STEPS, ROUNDS, MOMENTUM = 0.05, 4, 5, 0.5
K_ETA = RATE * terms.effective_steps(STEPS, MOMENTUM)
START = {"w": np.zeros(2)}


class Quadratic(NumPyClient):
    """A client in NumPy: momentum SGD on its quadratic, with the terms of a method."""

    def __init__(self, method, number, store, rate=RATE):
        self.method, self.store, self.rate = method, store, rate
        self.a, self.b = A[number], np.array(B[number])

    def descend(self, start, term):
        model, velocity = start, terms.zeros(start)
        for _ in range(STEPS):
            gradient = terms.added([self.a * (w - self.b) for w in model], term(model))
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
            model = [w - self.rate * v for w, v in zip(model, velocity, strict=True)]
        return model

    def fit(self, parameters, config):
        if self.method == "scaffold":
            received, c = terms.scaffold_received(parameters)
            own = self.store.load("own", config, before=True) or terms.zeros(c)
            model = self.descend(received, lambda _: terms.scaffold_term(c, own))
            k_eta = K_ETA * self.rate / RATE
            own, reply = terms.scaffold_finished(received, model, c, own, k_eta)
        elif self.method == "feddyn":
            alpha = config["feddyn-alpha"]
            own = self.store.load("own", config, before=True) or terms.zeros(parameters)
            reply = self.descend(parameters, lambda w: terms.feddyn_term(w, parameters, own, alpha))
            own = terms.feddyn_finished(reply, parameters, own, alpha)
        elif self.method == "ditto":
            reply = self.descend(parameters, lambda w: terms.zeros(w))
            own = self.store.load("own", config, before=True) or parameters
            mu = config["ditto-mu"]
            own = self.descend(own, lambda v: terms.proximal_term(v, parameters, mu))
        else:
            mu = config["proximal-mu"]
            own = reply = self.descend(parameters, lambda w: terms.proximal_term(w, parameters, mu))
        self.store.save("own", own, config)
        return reply, 1, {"method": self.method}

    def evaluate(self, parameters, config):
        model = (
            self.store.load("own", config, before=False) if self.method == "ditto" else parameters
        )
        return self.a / 2 * float(np.sum((model[0] - self.b) ** 2)), 1, {}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))


def torch_loss(net, context):
    number = context.node_config["partition-id"]
    return A[number] / 2 * torch.sum((net.w - torch.tensor(B[number], dtype=torch.float64)) ** 2)


def torch_app(loop):
    app = answer_identity(ClientApp())

    @app.train()
    def fit(message, context):
        def train(net, loader, epochs):
            optimiser = torch.optim.SGD(net.parameters(), RATE, momentum=MOMENTUM)
            for _ in range(STEPS):
                optimiser.zero_grad()
                torch_loss(net, context).backward()
                optimiser.step()
            return 0.0

        method = loop(Net, message, context)
        method.train(train, None, 1)
        return method.reply({"num-examples": 1})

    @app.evaluate()
    def evaluate(message, context):
        loss = torch_loss(loop(Net, message, context).model, context).item()
        scores = {"loss": loss, "num-examples": 1}
        return Message(RecordDict({"m": MetricRecord(scores)}), reply_to=message)

    return app


def numpy_app(method, **options):
    stores = [MessageStore(RecordDict()) for _ in A]

    def client_fn(context):
        number = context.node_config["partition-id"]
        return Quadratic(method, number, stores[number], **options)

    return to_client_app(client_fn)


def run(strategy, app, rounds=ROUNDS, **config):
    start = ArrayRecord({name: Array(value) for name, value in START.items()})
    configs = {name: ConfigRecord(config) for name in ("train_config", "evaluate_config")}
    return run_rounds(strategy, InlineGrid(app, 3), start, rounds, strict=True, **configs)


METHODS = {
    "scaffold": (Scaffold, clients.ScaffoldLoop),
    "feddyn": (lambda: FedDyn(FedDynOptions(alpha=0.5)), clients.FedDynLoop),
    "ditto": (lambda: Ditto(DittoOptions(mu=0.7, epochs=0)), clients.DittoLoop),
    "fedprox": (lambda: FedProx(FedProxOptions(mu=3.0)), clients.FedProxLoop),
}


@pytest.mark.parametrize("name", METHODS)
def test_arrays_equal_the_torch_loop(name):
    make, loop = METHODS[name]
    ours, theirs = run(make(), numpy_app(name)), run(make(), torch_app(loop))
    np.testing.assert_allclose(arrays_of(ours)["w"], arrays_of(theirs)["w"], atol=1e-6)
    for number in range(1, ROUNDS + 1):
        loss = ours.evaluate_metrics_clientapp[number]["loss"]
        assert loss == pytest.approx(theirs.evaluate_metrics_clientapp[number]["loss"], abs=1e-6)


@pytest.mark.parametrize(("rate", "heard"), [(0.7, 0), (0.8, 1)])
def test_scaffold_says_once_that_its_control_variates_grow(rate, heard, caplog):
    """The local steps of the third client diverge above 0.75."""
    with caplog.at_level(logging.WARNING):
        run(Scaffold(), numpy_app("scaffold", rate=rate), 30)
    assert caplog.text.count("SCAFFOLD's control variates are") == heard


def test_one_client_whose_control_variate_grows_is_enough(caplog):
    """With Lightning at rate 0.05 one of ten grew by 30 before the model was lost; the
    median grew by 3.
    """
    strategy = Scaffold()
    strategy.c = {"w": np.zeros(1)}
    for number, sizes in enumerate([(1, 2), (1, 19), (1, 21), (1, 40)], 1):
        replies = [ArrayRecord({"control.w": Array(np.array([float(s)]))}) for s in sizes]
        with caplog.at_level(logging.WARNING):
            strategy._watch(number, replies)
    (line,) = caplog.messages
    assert line.startswith("round 3: SCAFFOLD's control variates are up to 10 times")
