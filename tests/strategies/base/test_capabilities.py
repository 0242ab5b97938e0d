"""Capabilities are closed by default: who overrides ``aggregate_train`` says what it
does, or nothing composes with it.
"""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedapps import strategies
from fedapps.strategies import (
    AFL,
    TERM,
    FedAvg,
    FedBuff,
    PrivacyOptions,
    Private,
    PropFair,
    Robust,
    RobustOptions,
    Scaffold,
    TERMOptions,
    WarmStart,
)
from fedapps.strategies.base.capabilities import Capabilities, declared, replies_of, sends_updates
from tests.helpers import START, LossyClient, Trains, arrays_of, refused, simulate

LOSSES, SHIFTS, STEPS = [0.5, 1.0, 4.0], [1.0, 2.0, 6.0], [1, 2, 4]
DP = PrivacyOptions(noise_multiplier=1.0)


class SilentFedNova(FedAvg):
    """FedNova as a stranger would write it, who does not say what it takes."""

    def aggregate_train(self, server_round, replies):
        raise NotImplementedError


class HonestFedNova(SilentFedNova):
    """The same, which says that it looks at single replies."""

    capabilities = Capabilities(replies="model", aggregation="single replies")


class SummedFedNova(FedAvg):
    """FedNova whose clients send ``(w_k - w) / steps_k``: it needs no more than
    weighted averages of arrays and metrics.
    """

    capabilities = Capabilities(replies="update", aggregation="weighted average")

    def configure_train(self, server_round, arrays, config, grid):
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        update, metrics = super().aggregate_train(server_round, replies)
        moved = self._sent["w"].numpy() + update["w"].numpy() * metrics["steps"]
        return ArrayRecord({"w": Array(moved)}), metrics


def nova(i):
    """Return a client that moves by its shift, and sends that divided by its steps."""
    metrics = {"steps": STEPS[i], "loss-before": LOSSES[i]}
    return Trains(lambda sent, _: [np.full_like(w, SHIFTS[i] / STEPS[i]) for w in sent], 1, metrics)


WRAPPERS = {
    "TERM": lambda inner: TERM(inner, TERMOptions(1.0)),
    "noise-multiplier": lambda inner: Private(inner, DP),
    "robust.rule": lambda inner: Robust(inner, RobustOptions("median")),
    "WarmStart": lambda inner: WarmStart(FedAvg(), 1, inner),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_without_a_declaration_fednova_composes_with_nothing(name):
    said = f"{name}: SilentFedNova overrides aggregate_train and does not say .*: declare"
    refused(lambda: WRAPPERS[name](SilentFedNova()), said)


@pytest.mark.parametrize("name", ["TERM", "noise-multiplier"])
def test_with_an_honest_declaration_it_is_refused_for_what_it_does(name):
    refused(lambda: WRAPPERS[name](HonestFedNova()), "HonestFedNova")
    WRAPPERS["WarmStart"](HonestFedNova())


def test_a_weighted_sum_takes_other_weights():
    tilt = np.exp(LOSSES) / np.exp(LOSSES).sum()
    # metrics stay those of the samples
    for strategy, weights in (
        (SummedFedNova(), np.full(3, 1 / 3)),
        (WRAPPERS["TERM"](SummedFedNova()), tilt),
    ):
        result = simulate(strategy, lambda i, _: nova(i), 3, START, 1)
        expected = (weights @ (np.array(SHIFTS) / STEPS)) * np.mean(STEPS)
        np.testing.assert_allclose(arrays_of(result)["w"], expected, rtol=1e-6)


def every_strategy():
    """Yield each class of a strategy in the package, whether exported or not."""
    for module in pkgutil.walk_packages(strategies.__path__, "fedapps.strategies."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(kind, Strategy) and kind.__module__ == module.name:
                yield kind


def test_every_strategy_of_this_package_declares_what_covers_its_aggregation():
    found = list(every_strategy())
    assert len(found) > 30
    for kind in found:
        if "aggregate_train" in vars(kind):
            assert "capabilities" in vars(kind), kind


def test_a_subclass_that_leaves_the_aggregation_alone_is_covered():
    class Sampling(flower.FedAvg):
        def configure_train(self, *args):
            return super().configure_train(*args)

    assert declared(Sampling()).aggregation == "weighted average"


def test_what_is_asked_of_replies_follows_the_declaration():
    # a FedAvg that says nothing is held to FedAvg's contract
    assert replies_of(SilentFedNova()) == "model"
    assert replies_of(SummedFedNova()) == "update"
    for strategy in (Private(FedAvg(), DP), TERM(FedAvg()), Scaffold()):
        assert replies_of(strategy) == "model"
    assert sends_updates(SummedFedNova())
    assert not sends_updates(strategies.Local())


@pytest.mark.parametrize("wrap", [AFL, FedBuff, PropFair])
def test_a_wrapped_strategy_ends_the_run(wrap):
    class Ends(FedAvg):
        finished = False

        def aggregate_train(self, server_round, replies):
            self.finished = server_round == 2
            return super().aggregate_train(server_round, replies)

        capabilities = FedAvg.capabilities

    result = simulate(wrap(Ends()), lambda i, _: LossyClient(1.0, 1.0), 3, {"w": np.zeros(2)}, 5)
    assert max(result.train_metrics_clientapp) == 2
