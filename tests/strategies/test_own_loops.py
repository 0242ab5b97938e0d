"""Strategies in a loop that is not ours: Flower's own, or a subclass's `start`, as in
Flower's advanced-pytorch.
"""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AAggFFD,
    ClientGrid,
    FedAvg,
    FedFW,
    PropFair,
    Robust,
    RobustOptions,
    SuPerFed,
    SuPerFedOptions,
)
from tests.helpers import EchoClient

START = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
ROUNDS = 4
LINE = 'train_config["num-rounds"] = num_rounds'


def sent_in(strategy, loop, **given):
    """Return the training configuration of each round in a loop."""
    heard = []
    app = to_client_app(lambda context: EchoClient(1.0, heard=lambda c: heard.append(dict(c))))
    loop(strategy, InlineGrid(app, 3), START, num_rounds=ROUNDS, **given)
    return heard


@pytest.mark.parametrize("make", [SuPerFed, lambda: FedFW(L1Ball((2,), 1.0))])
def test_a_missing_number_of_rounds_is_said_once_with_the_line_to_add(make, caplog):
    numbered = {"train_config": ConfigRecord({"num-rounds": ROUNDS})}
    numbered["evaluate_config"] = ConfigRecord({"num-rounds": ROUNDS})
    ours, own = sent_in(make(), type(make()).start), sent_in(make(), Strategy.start, **numbered)
    assert LINE not in caplog.text
    differ = {
        key for one, other in zip(ours, own, strict=True) for key in one if one[key] != other[key]
    }
    assert differ == set()
    without = sent_in(make(), Strategy.start)
    assert [{**one, "num-rounds": ROUNDS} for one in without] != ours or make is not SuPerFed
    assert caplog.text.count(LINE) == 1
    assert "start" not in caplog.text.split(LINE)[1].splitlines()[0]  # a subclass has its own


def test_the_number_of_rounds_need_not_be_said_twice(caplog):
    """Sent with the training, it holds for the evaluation."""
    strategy, given = SuPerFed(), ConfigRecord({"num-rounds": ROUNDS})
    sent_in(strategy, Strategy.start, train_config=given)
    assert LINE not in caplog.text
    assert strategy.rounds_in(ConfigRecord(), 1) == ROUNDS
    # and it is still heard who does the client half
    assert "do not acknowledge its client half" in caplog.text


class Failing(EchoClient):
    def fit(self, parameters, config):
        raise RuntimeError("out of reach")

    def evaluate(self, parameters, config):
        raise RuntimeError("not scored")


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(),
        SuPerFed(SuPerFedOptions(lambda_choice="own")),
        AAggFFD(FedAvg()),
        PropFair(FedAvg()),
        Robust(FedAvg(), RobustOptions(rule="median")),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_client_that_fails_is_named_in_any_loop(strategy, caplog):
    """Once a phase; in our own loop, it is named there."""
    sound, fails = (kind(1.0, metrics={"loss-before": 1.0}) for kind in (EchoClient, Failing))
    app = to_client_app(lambda c: fails if c.node_config["partition-id"] == 1 else sound)
    for loop in (Strategy.start, type(strategy).start):
        caplog.clear()
        configs = {f"{p}_config": ConfigRecord({"num-rounds": 1}) for p in ("train", "evaluate")}
        loop(strategy, InlineGrid(app, 3), START, num_rounds=1, **configs)
        warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        named = [text for text in warned if "out of reach" in text or "not scored" in text]
        assert len(named) == 2, named
        assert all("1" in text for text in named)


class Broken(EchoClient):
    """Client 1 sends ``weights`` and ``metrics``; every other reply is sound."""

    def __init__(self, number, weights, metrics):
        super().__init__(1.0, metrics={"loss-before": 1.0, "rows": 1})
        self.broken, self.weights = number == 1, weights
        self.metrics = metrics if self.broken else self.metrics

    def fit(self, parameters, config):
        arrays, samples, metrics = super().fit(parameters, config)
        return self.weights if self.broken else arrays, samples, metrics

    def evaluate(self, parameters, config):
        return 1.0, 1, {"rows": 1, "score": float("nan") if self.broken else 0.5}


GOOD, BAD = np.ones(2, np.float32), np.array([1, np.nan], np.float32)


@pytest.mark.parametrize(
    ("weights", "metrics", "fault"),
    [
        (BAD, {"rows": 1}, "array '0' holds values that are not finite"),
        (np.ones(3, np.float32), {"rows": 1}, "array '0' has shape (3,), but (2,) was sent"),
        (GOOD, {}, "the reply has no 'rows' metric"),
        (GOOD, {"rows": 0}, "rows = 0: must be a number above 0"),
        (GOOD, {"rows": 1, "gain": float("inf")}, "metric 'gain' is not finite"),
    ],
    ids=["nan", "shape", "no weight", "weight 0", "metric"],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda inner: inner,
        AAggFFD,
        PropFair,
        lambda inner: Robust(inner, RobustOptions(rule="median")),
    ],
    ids=["FedAvg", "AAggFFD", "PropFair", "Robust"],
)
@pytest.mark.parametrize("named", [False, True], ids=["plain grid", "client grid"])
def test_a_broken_reply_is_named_and_left_out_in_any_loop(
    around, weights, metrics, fault, named, caplog
):
    """Unchecked, one client's NaN is everybody's model, in silence. The others' metrics
    stay.
    """
    app = to_client_app(lambda c: Broken(c.node_config["partition-id"], [weights], metrics))
    inline, strategy = InlineGrid(app, 3), around(FedAvg(weighted_by_key="rows"))
    grid = ClientGrid(inline, seed=0) if named else inline
    result = Strategy.start(strategy, grid, ArrayRecord([np.zeros(2, np.float32)]), num_rounds=1)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [1, 1]
    (said,) = [line for line in caplog.messages if "left out:" in line]
    culprit = "client 1" if named else "node 1001"
    assert f"{culprit} left out: {fault}" in said
    assert result.train_metrics_clientapp[1]["loss"] == 1
    assert result.evaluate_metrics_clientapp[1]["score"] == 0.5
    assert "metric 'score' is not a number, and left out of the mean" in caplog.text
