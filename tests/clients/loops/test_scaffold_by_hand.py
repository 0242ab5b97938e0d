"""SCAFFOLD of a client without PyTorch equals the torch loop, on quadratics
``(a_i / 2) |w - b_i|^2``, with momentum; and what its strategy says of variates that
grow.
"""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from fedapps.algorithms.common.schedule import effective_steps
from fedapps.clients import MessageStore, ScaffoldLoop, answer_identity, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import Scaffold, run_rounds
from tests.helpers import arrays_of

A, B = [1.0, 2.0, 4.0], [[1.0, -1.0], [0.5, 2.0], [-2.0, 0.0]]
RATE, STEPS, ROUNDS, MOMENTUM = 0.05, 4, 5, 0.5


class Quadratic(NumPyClient):
    """A client in NumPy: momentum SGD on its quadratic."""

    def __init__(self, number, store, rate):
        self.store, self.rate = store, rate
        self.a, self.b = A[number], np.array(B[number])

    def fit(self, parameters, config):
        w, c = parameters
        (own,) = self.store.load("own", config, before=True) or [0 * c]
        velocity = 0 * w
        for _ in range(STEPS):
            velocity = MOMENTUM * velocity + self.a * (w - self.b) + c - own
            w = w - self.rate * velocity
        direction = (parameters[0] - w) / (self.rate * effective_steps(STEPS, MOMENTUM))
        self.store.save("own", [own - c + direction], config)
        return [w, direction], 1, {"method": "scaffold"}

    def evaluate(self, parameters, config):
        return self.a / 2 * float(np.sum((parameters[0] - self.b) ** 2)), 1, {}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))


def torch_app():
    app = answer_identity(ClientApp())

    @app.train()
    def fit(message: Message, context):
        number = context.node_config["partition-id"]
        b = torch.tensor(B[number], dtype=torch.float64)

        def train(net, loader, epochs):
            optimiser = torch.optim.SGD(net.parameters(), RATE, momentum=MOMENTUM)
            for _ in range(STEPS):
                optimiser.zero_grad()
                (A[number] / 2 * torch.sum((net.w - b) ** 2)).backward()
                optimiser.step()
            return 0.0

        method = ScaffoldLoop(Net, message, context)
        method.train(train, None, 1)
        return method.reply({"num-examples": 1})

    return app


def numpy_app(rate=RATE):
    stores = [MessageStore(RecordDict()) for _ in A]

    def client_fn(context):
        number = context.node_config["partition-id"]
        return Quadratic(number, stores[number], rate)

    return to_client_app(client_fn)


def run(app, rounds=ROUNDS, **more):
    start = ArrayRecord({"w": Array(np.zeros(2))})
    configs = {name: ConfigRecord({}) for name in ("train_config", "evaluate_config")}
    return run_rounds(Scaffold(), InlineGrid(app, 3), start, rounds, strict=True, **configs, **more)


def test_arrays_equal_the_torch_loop():
    ours, theirs = run(numpy_app()), run(torch_app(), evaluate_every=0)
    np.testing.assert_allclose(arrays_of(ours)["w"], arrays_of(theirs)["w"], atol=1e-6)


@pytest.mark.parametrize(("rate", "heard"), [(0.7, 0), (0.8, 1)])
def test_scaffold_says_once_that_its_control_variates_grow(rate, heard, caplog):
    """The local steps of the third client diverge above 0.75."""
    with caplog.at_level(logging.WARNING):
        run(numpy_app(rate), 30)
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
