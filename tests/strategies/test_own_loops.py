"""Strategies in a loop that is not ours: Flower's own, or a subclass's `start`, as in
Flower's advanced-pytorch.
"""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

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

ROUNDS = 4
LINE = 'train_config["num-rounds"] = num_rounds'


class Keeping(InlineGrid):
    """Keeps the configurations of training messages."""

    def push_messages(self, messages):
        listed = list(messages)
        self.sent = getattr(self, "sent", []) + [
            dict(m.content["config"]) for m in listed[:1] if m.metadata.message_type == "train"
        ]
        return super().push_messages(listed)


def sent_in(strategy, loop, **given):
    """Return the training configuration of each round in a loop."""
    grid = Keeping(to_client_app(lambda context: EchoClient(1.0)), 3)
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    loop(strategy, grid, arrays, num_rounds=ROUNDS, **given)
    return grid.sent


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
    config = ConfigRecord({"num-rounds": ROUNDS})
    with caplog.at_level(logging.WARNING):
        sent_in(SuPerFed(), Strategy.start, train_config=config)
    assert LINE not in caplog.text


def test_privacy_is_warned_of_where_it_is_used(caplog):
    def fair():
        strategy = AAggFFD(FedAvg())
        strategy.configure_evaluate = lambda *_: []
        return strategy

    class Losses(EchoClient):
        def fit(self, parameters, config):
            arrays, number, metrics = super().fit(parameters, config)
            return arrays, number, {**metrics, "loss-before": 1.0}

    def run(strategy):
        grid = InlineGrid(to_client_app(lambda context: Losses(1.0)), 3)
        arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
        Strategy.start(strategy, grid, arrays, num_rounds=1)

    with caplog.at_level(logging.WARNING):
        run(fair())
        assert "epsilon" not in caplog.text
        run(DifferentialPrivacyServerSideFixedClipping(fair(), 1.0, 1.0, 3))
    assert caplog.text.count("the epsilon does not hold") == 1


class Failing(EchoClient):
    """Client 1 fails; every reply has what AAggFF needs."""

    def __init__(self, number):
        super().__init__(1.0)
        self.number = number

    def fit(self, parameters, config):
        if self.number == 1:
            raise RuntimeError("out of reach")
        arrays, number, metrics = super().fit(parameters, config)
        return arrays, number, {**metrics, "loss-before": 1.0}

    def evaluate(self, parameters, config):
        if self.number == 1:
            raise RuntimeError("not scored")
        return super().evaluate(parameters, config)


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
    number = {"num-rounds": 1}
    app = to_client_app(lambda context: Failing(context.node_config["partition-id"]))
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    for loop in (Strategy.start, type(strategy).start):
        caplog.clear()
        configs = {f"{phase}_config": ConfigRecord(number) for phase in ("train", "evaluate")}
        loop(strategy, InlineGrid(app, 3), arrays, num_rounds=1, **configs)
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
    arrays = ArrayRecord([np.zeros(2, np.float32)])
    result = Strategy.start(strategy, grid, arrays, num_rounds=1)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [1, 1]
    (said,) = [one.getMessage() for one in caplog.records if "left out:" in one.getMessage()]
    culprit = "client 1" if named else f"node {list(inline.get_node_ids())[1]}"
    assert f"{culprit} left out: {fault}" in said
    assert result.train_metrics_clientapp[1]["loss"] == 1
    assert result.evaluate_metrics_clientapp[1]["score"] == 0.5
    assert "metric 'score' is not a number, and left out of the mean" in caplog.text


def test_a_loop_that_sends_the_number_still_hears_who_does_the_client_half(caplog):
    sent_in(SuPerFed(), Strategy.start, train_config=ConfigRecord({"num-rounds": ROUNDS}))
    assert "do not acknowledge its client half" in caplog.text
