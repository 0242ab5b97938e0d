"""A strategy notices that the clients do not do their half of it."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower

from fedapps import clients, strategies
from fedapps.algorithms.contract.sent import METHOD
from fedapps.clients import FedAvgClient, answer_identity, to_client_app
from fedapps.clients.propfair import proportional
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    TERM,
    Ditto,
    FedAvg,
    FedDyn,
    FedProx,
    FedProxOptions,
    PropFair,
    Robust,
    RobustOptions,
    Scaffold,
    WarmStart,
    run_rounds,
)
from fedapps.strategies.base.acknowledgement import LOOPS, asked_of
from tests.clients.federation import headed
from tests.helpers import EchoClient, blobs, refused, small_net
from tests.loops import own_app
from tests.strangers import stranger

CONFIG = {"learning-rate": 0.05, "local-epochs": 1, "batch-size": 10, "seed": 3}
#: Strategies whose clients do something of their own, and how one is made.
ASKING = {
    "APFL": strategies.APFL,
    "Ditto": strategies.Ditto,
    "FedALA": strategies.FedALA,
    "FedDyn": strategies.FedDyn,
    "FedProx": strategies.FedProx,
    "FedRoD": strategies.FedRoD,
    "Finetune": strategies.Finetune,
    "PFedMe": strategies.PFedMe,
    "PerFedAvg": strategies.PerFedAvg,
    "PropFair": lambda: strategies.PropFair(FedAvg()),
    "SuPerFed": strategies.SuPerFed,
}


W = ArrayRecord({"w": Array(np.zeros(2, np.float32))})


def app_of(kind):
    return own_app(kind, headed())


def half_warnings(caplog):
    return [line for line in caplog.messages if "client half" in line]


def run(strategy, app, rounds=2, **options):
    start = ArrayRecord(small_net(0).state_dict())
    configs = {"train_config": ConfigRecord(CONFIG), "evaluate_config": ConfigRecord(CONFIG)}
    return run_rounds(strategy, InlineGrid(app, 3), start, rounds, **configs, **options)


@pytest.mark.parametrize("name", ASKING)
def test_clients_that_train_as_fedavgs_are_noticed_once_and_by_name(name, caplog):
    run(ASKING[name](), app_of(FedAvgClient))
    (said,) = half_warnings(caplog)
    assert said.startswith(f"{name}: 3 of 3 clients")
    assert f"clients.{name}Client" in said
    refused(
        lambda: run(ASKING[name](), app_of(FedAvgClient), strict=True),
        rf"{name}: 3 of 3 clients .* \(clients 0, 1, 2\)",
    )


@pytest.mark.parametrize("name", ASKING)
def test_the_methods_own_clients_acknowledge_it(name, caplog):
    run(ASKING[name](), app_of(getattr(clients, f"{name}Client")), strict=True)
    assert "client half" not in caplog.text


def test_a_stranger_acknowledges_with_a_word(caplog):
    proximal = EchoClient(1.0, metrics={METHOD: "fedprox"})
    for client, heard in ((proximal, False), (EchoClient(1.0), True)):
        caplog.clear()
        grid = InlineGrid(to_client_app(lambda context, client=client: client), 2)
        run_rounds(FedProx(), grid, W, 1)
        assert ("client half" in caplog.text) == heard
    run_rounds(FedProx(FedProxOptions(mu=0.0)), grid, W, 1, strict=True)


def test_only_those_without_an_acknowledgement_are_named(caplog):
    word = {"c": ConfigRecord({METHOD: "ditto"})}
    run(Ditto(), answer_identity(stranger(more=lambda i: {} if i == 1 else word)))
    (said,) = half_warnings(caplog)
    assert said.startswith("Ditto: 1 of 3 clients")
    assert "(client 1)" in said
    assert "clients.DittoLoop" in said


def halves(then):
    kinds = {"first": FedAvgClient, "then": then}
    made = {half: lambda kind=kind: kind(small_net, blobs(0)) for half, kind in kinds.items()}
    return to_client_app(lambda context: clients.WarmStartClient(made))


@pytest.mark.parametrize(
    ("strategy", "app"),
    [
        (TERM(FedProx()), app_of(FedAvgClient)),
        (Robust(FedProx(), RobustOptions("median")), app_of(FedAvgClient)),
        (WarmStart(FedAvg(), 1, FedProx()), halves(FedAvgClient)),
        (
            flower.DifferentialPrivacyServerSideFixedClipping(FedProx(), 0.1, 1.0, 3),
            app_of(FedAvgClient),
        ),
    ],
    ids=["a weight rule", "a robust mean", "a warm start", "privacy"],
)
def test_wrappers_are_looked_through(strategy, app):
    refused(lambda: run(strategy, app, strict=True), "FedProx: 3 of 3 clients")


def test_the_half_of_a_warm_start_acknowledges():
    run(WarmStart(FedAvg(), 1, FedProx()), halves(clients.FedProxClient), strict=True)


def test_both_halves_of_a_composition_are_asked_for():
    kind = proportional(clients.ScaffoldClient)
    run(PropFair(Scaffold()), app_of(kind), strict=True)
    other = app_of(clients.ScaffoldClient)
    refused(lambda: run(PropFair(Scaffold()), other, strict=True), "PropFair: 3 of 3 clients")


def test_every_class_with_a_client_half_has_the_clients_that_the_message_names():
    found = {n for n in strategies.__all__ if "client_half" in vars(getattr(strategies, n))}
    assert set(ASKING) <= found
    assert {f"{name}Loop" for name in LOOPS} <= set(dir(clients))
    for name in found:
        assert hasattr(clients, f"{name}Client"), name
        assert (name in LOOPS) == hasattr(clients, f"{name}Loop"), name
    assert [name for name, _ in asked_of(PropFair(FedProx()))] == ["PropFair", "FedProx"]


@pytest.mark.parametrize("inner", [lambda: TERM(FedAvg()), FedDyn])
@pytest.mark.parametrize("ours", [True, False])
def test_privacy_around_what_takes_more_than_an_average_is_noticed(inner, ours, caplog):
    client = EchoClient(1.0, metrics={"loss-before": 1.0})
    grid = InlineGrid(to_client_app(lambda context: client), 3)
    for strategy, heard in ((inner(), 1), (FedAvg(weights="uniform"), 0)):
        caplog.clear()
        wrapper = flower.DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 3)
        (run_rounds if ours else type(wrapper).start)(wrapper, grid, W, 2)
        assert caplog.text.count("carry no noise") == heard
