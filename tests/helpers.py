"""What several tests share: runs on the in-process grid, clients whose result is known by hand, small data and nets."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.client import NumPyClient

from clients import ClientData, Split, to_client_app
from fedapps.engines.inline import InlineGrid


def assert_same(a, b, where="", skip=lambda key: key == "seconds"):
    """Compare nested values, numbers to 1e-6, but for the keys that ``skip`` names."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if not skip(key):
                assert_same(a[key], b[key], f"{where}.{key}", skip)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6), where
    else:
        assert a == b, where


def simulate(strategy, client_fn, num_clients, initial, num_rounds=3, config=None, grid=None, **options):
    """Run a strategy over clients made by ``client_fn(partition_id, context)``; returns Flower's Result."""
    app = to_client_app(lambda context: client_fn(int(context.node_config["partition-id"]), context))
    grid = grid or InlineGrid(app, num_clients)
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in initial.items()})
    return strategy.start(grid, arrays, num_rounds, train_config=ConfigRecord(config or {}), **options)


def arrays_of(result):
    """Return the final arrays of a Result by name."""
    return {name: array.numpy() for name, array in result.arrays.items()}


class EchoClient(NumPyClient):
    """Returns its model shifted by a constant, with its own weight; what FedAvg makes of that is known by hand."""

    def __init__(self, shift, num_examples=1, metrics=None):
        self.shift, self.num_examples, self.metrics = shift, num_examples, metrics or {}

    def fit(self, parameters, config):
        return [p + np.asarray(self.shift, p.dtype) for p in parameters], self.num_examples, {"loss": 1.0, **self.metrics}

    def evaluate(self, parameters, config):
        return float(np.mean(parameters[0])), self.num_examples, {"accuracy": 0.5, **self.metrics}


def blobs(seed=0, n=60, classes=3, dim=4, shift=0.0):
    """Return a small classification problem as a client's data: Gaussian blobs around the axes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(n, 1, 1, dim)) * 0.5
    x[np.arange(n), 0, 0, y] += 2.0
    x += shift
    cut, cut2 = int(0.6 * n), int(0.8 * n)

    def split(part):
        return Split(torch.tensor(x[part], dtype=torch.float32), torch.tensor(y[part]))

    return ClientData(split(slice(0, cut)), split(slice(cut, cut2)), split(slice(cut2, n)))


def small_net(seed, classes=3, dim=4, hidden=8):
    """Return a two-layer net for ``blobs``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(dim, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
        )


class LossyClient(EchoClient):
    """An ``EchoClient`` that also reports the loss of the model it received, ``loss(server_round)`` or a number."""

    def __init__(self, shift, loss, num_examples=1):
        super().__init__(shift, num_examples)
        self.loss_of = loss if callable(loss) else lambda _: loss

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        asked = {"loss-before": self.loss_of(config["server-round"])} if config.get("loss-before") else {}
        return arrays, n, {**metrics, **asked}
