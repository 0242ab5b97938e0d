"""FENS through real messages: with a linear aggregator it is logistic regression on the
stacked outputs, it finds the predictor that is right, and the predictors travel once.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedapps.clients import FENSClient, MessageStore, Split, TrainOptions, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import FENS, FENSOptions
from tests.helpers import arrays_in, arrays_of, exchanged, play

CLASSES, INPUTS = 3, 60
LABELS = np.arange(INPUTS) % CLASSES
ONE_STEP = {"local-epochs": 1, "batch-size": 64, "momentum": 0.0, "weight-decay": 0.0}
#: Of random predictors, (M, inputs, classes).
RANDOM = np.random.default_rng(2).dirichlet(np.ones(CLASSES), (4, INPUTS)).astype(np.float32)


class Predicts:
    """A client's samples of a few inputs; it sends ``table``, the outputs of a predictor
    at each of them.
    """

    def __init__(self, table, rows):
        half = len(rows) // 2
        self.train, self.test = (
            Split(torch.tensor(part), torch.tensor(LABELS[part]))
            for part in (rows[:half], rows[half:])
        )
        self.table, self.num_examples, self.asked = table, half, 0

    def train_predictor(self, config):
        return {"outputs": self.table}

    def probabilities(self, predictors, data):
        self.asked += 1
        return predictors["outputs"][:, data.x.numpy()].astype(np.float64)


def shares(tables, bounds=None):
    """Return clients with these tables, and equal or given parts of the inputs."""
    bounds = bounds or np.linspace(0, INPUTS, len(tables) + 1).astype(int)
    rows = np.random.default_rng(1).permutation(INPUTS)
    parts = [rows[low:high] for low, high in pairwise(bounds)]
    return [Predicts(*pair) for pair in zip(tables, parts, strict=True)]


def run(clients, rounds, hidden=0, lose=lambda *_: None, evaluate_every=0, on=None, **config):
    strategy = FENS(CLASSES, FENSOptions(hidden=hidden), seed=3)

    def client(context):
        number = context.node_config["partition-id"]
        lose(number, context)
        return FENSClient(
            clients[number], TrainOptions(), number, MessageStore(context.state)
        )

    config = {"lr-decay": 1.0, "seed": 1, **config}
    inner = lambda *_: InlineGrid(to_client_app(client), len(clients))
    start = {"alpha": np.zeros(1)}
    more = {"evaluate_every": evaluate_every, "on": on or {}}
    return play(strategy, None, len(clients), start, rounds, config, inner, **more)


@pytest.mark.parametrize("bounds", [[0, 60], [0, 40, 60]])
def test_a_linear_aggregator_is_logistic_regression_on_the_stacked_outputs(bounds):
    """One step on all samples per round: FedAvg of it is a step on the pooled ones."""
    clients = shares(RANDOM[: len(bounds) - 1], bounds)
    job = {**ONE_STEP, "learning-rate": 0.5}
    start, end = (arrays_of(run(clients, rounds, **job)) for rounds in (1, 9))
    rows = np.concatenate([one.train.x.numpy() for one in clients])
    stacked = RANDOM[: len(clients), rows].astype(float)  # (M, n, C)
    x, y = np.concatenate(list(stacked), 1), np.eye(CLASSES)[LABELS[rows]]
    weight, bias = start["0.weight"].astype(float), start["0.bias"].astype(float)
    for _ in range(8):
        outputs = np.exp(x @ weight.T + bias)
        error = (outputs / outputs.sum(1, keepdims=True) - y) / len(y)
        weight, bias = weight - 0.5 * error.T @ x, bias - 0.5 * error.sum(0)
    np.testing.assert_allclose(end["0.weight"], weight, atol=1e-6)
    np.testing.assert_allclose(end["0.bias"], bias, atol=1e-6)


@pytest.mark.parametrize("hidden", [0, 8])
def test_it_finds_the_predictor_that_is_right(hidden):
    right = 0.2 + 0.4 * np.eye(CLASSES)[LABELS]
    clients = shares([*RANDOM, right.astype(np.float32)])
    job = {**ONE_STEP, "evaluate_every": 100, "learning-rate": 0.5, "batch-size": 2}
    metrics = run(clients, 100, hidden, **job).seen[-1].evaluate_metrics
    print(metrics)
    assert metrics["accuracy"] == 1
    assert metrics["uniform-accuracy"] < 0.7


def test_predictors_travel_once_and_then_the_aggregator_alone(monkeypatch):
    """Two of three clients per round; a client that lost the outputs fails once and is
    sent the predictors again.
    """
    seen, clients, fits = exchanged(monkeypatch), shares(RANDOM[:3]), []

    def lose(number, context):
        fits.append(number)
        if number == 1 and fits.count(1) == 6:
            context.state.clear()

    on = {"clients_per_round": 2}
    result = run(clients, 8, 4, lose, evaluate_every=1, on=on, **ONE_STEP)
    failures = [failure for now in result.seen for failure in now.failures]
    assert [(f.client, "outputs of the predictors were lost" in f.reason) for f in failures] == [(1, True)]
    size = 4 * (2 * CLASSES * 4 + 4 + 4 * CLASSES + CLASSES)  # float32, M = 2
    table = 2 * 4 * INPUTS * CLASSES
    seen = [one for one in seen if one[0] != "query.identity"]
    down = [sum(array.nbytes for _, array in arrays_in(sent)) for _, sent, *_ in seen]
    assert down[:2] == [0, 0]
    assert set(down[2:]) == {size, size + table}
    assert down.count(size + table) == 3 + 1
    up = [sum(a.nbytes for _, a in arrays_in(*got)) for kind, _, *got in seen if kind == "train"]
    assert up[:2] == [table // 2] * 2
    assert set(up[2:]) <= {size, 0}
    # the outputs on training and test samples are computed when the predictors come
    assert [one.asked for one in clients] == [2, 4, 2]
