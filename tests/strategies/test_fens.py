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
from tests.helpers import arrays_in, arrays_of, assert_arrays, exchanged, play

CLASSES, INPUTS = 3, 60  # the class of input i is i % 3
ONE_STEP = {"local-epochs": 1, "batch-size": 64, "momentum": 0.0, "weight-decay": 0.0}
#: Outputs of predictors that know nothing, (M, inputs, classes).
RANDOM = np.random.default_rng(2).dirichlet(np.ones(CLASSES), (4, INPUTS)).astype(np.float32)


class Predicts:
    """A client's inputs, half of them to train on; it sends ``outputs``, those of its
    predictor at all inputs, if it is to train as a predictor and not as an aggregator.
    """

    def __init__(self, outputs, rows):
        self.outputs, self.num_examples, self.asked = outputs, len(rows) // 2, 0
        parts = torch.tensor(rows).split([len(rows) // 2, len(rows) - len(rows) // 2])
        self.train, self.test = (Split(part, part % CLASSES) for part in parts)

    def train_predictor(self, config):
        return {"outputs": self.outputs} if config["batch-size"] == TrainOptions.batch_size else {}

    def probabilities(self, predictors, data):
        self.asked += 1
        outputs = predictors["outputs"][:, data.x.numpy()].astype(np.float64)
        return np.where(outputs > 1e4, np.nan, outputs)  # as a net of large numbers


def clients_with(outputs, bounds=None):
    """Return clients with these predictors, and equal or given parts of the inputs."""
    bounds = bounds or np.linspace(0, INPUTS, len(outputs) + 1).astype(int)
    rows = np.random.default_rng(1).permutation(INPUTS)
    return [Predicts(o, rows[a:b]) for o, (a, b) in zip(outputs, pairwise(bounds), strict=True)]


def run(clients, rounds, hidden=0, each=lambda *_: None, evaluate_every=0, on=None, **config):
    """Run FENS; ``each(client, context)`` is called before every message."""

    def client(context):
        number = context.node_config["partition-id"]
        each(number, context)
        return FENSClient(clients[number], TrainOptions(), number, MessageStore(context.state))

    inner = lambda *_: InlineGrid(to_client_app(client), len(clients))
    strategy, start = FENS(CLASSES, FENSOptions(hidden=hidden), seed=3), {"alpha": np.zeros(1)}
    config = {"lr-decay": 1.0, "seed": 1, **config}
    return play(
        *(strategy, None, len(clients), start, rounds, config, inner),
        **{"evaluate_every": evaluate_every, "on": on or {}},
    )


@pytest.mark.parametrize("bounds", [[0, 60], [0, 40, 60]])
def test_a_linear_aggregator_is_logistic_regression_on_the_stacked_outputs(bounds):
    """One step on all samples per round: FedAvg of it is a step on the pooled ones."""
    clients = clients_with(RANDOM[: len(bounds) - 1], bounds)
    job = {**ONE_STEP, "learning-rate": 0.5}
    start, end = (arrays_of(run(clients, rounds, **job)) for rounds in (1, 9))
    rows = np.concatenate([one.train.x.numpy() for one in clients])
    x = np.concatenate([one.outputs[rows] for one in clients], 1).astype(float)
    weight, bias = start["0.weight"].astype(float), start["0.bias"].astype(float)
    for _ in range(8):
        outputs = np.exp(x @ weight.T + bias)
        error = outputs / outputs.sum(1, keepdims=True) - np.eye(CLASSES)[rows % CLASSES]
        weight, bias = weight - 0.5 * error.T @ x / len(x), bias - 0.5 * error.mean(0)
    assert_arrays(end, {"0.weight": weight, "0.bias": bias}, atol=1e-6)


#: Of predictors: one is right, though unsure, beside those that know nothing; the class
#: is the sum of two, modulo 3, which no linear aggregator finds.
INPUT, SURE = np.arange(INPUTS), np.eye(CLASSES)
RIGHT = 0.2 + 0.4 * SURE[INPUT % 3]
SUMMANDS = [SURE[INPUT // 3 % 3], SURE[(INPUT - INPUT // 3) % 3]]


@pytest.mark.parametrize(
    ("hidden", "outputs"),
    [(0, [*RANDOM, RIGHT]), (32, SUMMANDS), (0, [*RANDOM, RIGHT, np.full(RIGHT.shape, 1e5)])],
)
def test_it_finds_the_predictors_that_are_right(hidden, outputs):
    """Beside one, too, whose outputs overflow."""
    clients = clients_with(np.asarray(outputs, np.float32))
    job = {**ONE_STEP, "evaluate_every": 60, "learning-rate": 0.5, "batch-size": 2}
    metrics = run(clients, 60, hidden, **job).seen[-1].evaluate_metrics
    assert metrics["uniform-accuracy"] < 0.7 < 0.95 < metrics["accuracy"]


def test_predictors_travel_once_and_then_the_aggregator_alone(monkeypatch):
    """Two of three clients per round; one loses the outputs, fails and is sent the
    predictors again.
    """
    seen, clients, called = exchanged(monkeypatch), clients_with(RANDOM[:3]), []

    def each(number, context):
        called.append(number)
        if number == 1 and called.count(1) == 6:
            context.state.clear()

    rounds = run(clients, 8, 4, each, 1, {"clients_per_round": 2}, **ONE_STEP).seen
    failures = [(f.client, f.reason) for now in rounds for f in now.failures]
    assert [(who, "outputs of the predictors were lost" in why) for who, why in failures] == [
        (1, True)
    ]
    messages = [(sent, got) for kind, sent, *got in seen if kind != "query.identity"]
    down, up = (
        [sum(array.nbytes for _, array in arrays_in(*contents)) for contents in side]
        for side in ([[sent] for sent, _ in messages], [got for _, got in messages])
    )
    # float32: a net of two predictors of three classes, and the predictors themselves
    net, predictor = 4 * (6 * 4 + 4 + 4 * 3 + 3), 4 * INPUTS * CLASSES
    assert (down[:2], up[:2]) == ([0, 0], [predictor, predictor])
    assert (set(down[2:]), set(up[2:])) == ({net, net + 2 * predictor}, {net, 0})
    assert down.count(net + 2 * predictor) == 3 + 1
    # for the samples of training and test, whenever the predictors come
    assert [one.asked for one in clients] == [2, 4, 2]
