"""A strategy notices that the clients do not do their half of it."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fedapps import clients, strategies
from fedapps.algorithms.contract.sent import METHOD
from fedapps.clients import FedAvgClient, MessageStore, answer_identity, to_client_app
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
from tests.helpers import EchoClient, blobs, small_net

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


def net_with_head(seed):
    net = small_net(seed)
    net.head = (f"{len(net) - 1}.",)
    return net


def app_of(kind):
    stores = {}

    def client_fn(context):
        number = context.node_config["partition-id"]
        store = stores.setdefault(number, MessageStore(RecordDict()))
        return kind(net_with_head, blobs(number), number, store)

    return to_client_app(client_fn)


def run(strategy, app, rounds=2, **options):
    start = ArrayRecord(small_net(0).state_dict())
    configs = {"train_config": ConfigRecord(CONFIG), "evaluate_config": ConfigRecord(CONFIG)}
    return run_rounds(strategy, InlineGrid(app, 3), start, rounds, **configs, **options)


@pytest.mark.parametrize("name", ASKING)
def test_clients_that_train_as_fedavgs_are_noticed_once_and_by_name(name, caplog):
    run(ASKING[name](), app_of(FedAvgClient))
    said = [r.getMessage() for r in caplog.records if "client half" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"{name}: 3 of 3 clients")
    assert f"clients.{name}Client" in said[0]
    with pytest.raises(ValueError, match=rf"{name}: 3 of 3 clients .* \(clients 0, 1, 2\)"):
        run(ASKING[name](), app_of(FedAvgClient), strict=True)


@pytest.mark.parametrize("name", ASKING)
def test_the_methods_own_clients_acknowledge_it(name, caplog):
    run(ASKING[name](), app_of(getattr(clients, f"{name}Client")), strict=True)
    assert "client half" not in caplog.text


def test_a_stranger_acknowledges_with_a_word(caplog):
    class Proximal(EchoClient):
        def fit(self, parameters, config):
            arrays, number, metrics = super().fit(parameters, config)
            return arrays, number, {**metrics, METHOD: "fedprox"}

    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    for kind, heard in ((Proximal, False), (EchoClient, True)):
        caplog.clear()
        run_rounds(FedProx(), InlineGrid(to_client_app(lambda c, k=kind: k(1.0)), 2), start, 1)
        assert ("client half" in caplog.text) == heard
    run_rounds(FedProx(FedProxOptions(mu=0.0)), InlineGrid(to_client_app(lambda c: EchoClient(1.0)), 2), start, 1, strict=True)  # fmt: skip


def stranger(said=None):
    app = answer_identity(ClientApp())

    @app.train()
    def fit(message, context):
        records = {"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 1})}
        if said and context.node_config["partition-id"] in said:
            records["c"] = ConfigRecord({METHOD: "ditto"})
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def test_only_those_without_an_acknowledgement_are_named(caplog):
    run(Ditto(), stranger({0, 2}))
    (said,) = [r.getMessage() for r in caplog.records if "client half" in r.getMessage()]
    assert said.startswith("Ditto: 1 of 3 clients")
    assert "(client 1)" in said
    assert "clients.DittoLoop" in said


def wrapped():
    robust = RobustOptions("median")
    return {
        "a weight rule": TERM(FedProx()),
        "a robust mean": Robust(FedProx(), robust),
        "a warm start": WarmStart(FedAvg(), 1, FedProx()),
        "privacy": flower.DifferentialPrivacyServerSideFixedClipping(FedProx(), 0.1, 1.0, 3),
    }


@pytest.mark.parametrize("name", wrapped())
def test_wrappers_are_looked_through(name, caplog):
    app = app_of(FedAvgClient)
    if name == "a warm start":
        kinds = {half: lambda: FedAvgClient(small_net, blobs(0)) for half in ("first", "then")}
        app = to_client_app(lambda context: clients.WarmStartClient(kinds))
    with pytest.raises(ValueError, match="FedProx: 3 of 3 clients"):
        run(wrapped()[name], app, strict=True)


def test_the_half_of_a_warm_start_acknowledges():
    def client_fn(context):
        number = context.node_config["partition-id"]
        kinds = {"first": FedAvgClient, "then": clients.FedProxClient}
        return clients.WarmStartClient(
            {half: lambda k=kind: k(small_net, blobs(number)) for half, kind in kinds.items()}
        )

    run(WarmStart(FedAvg(), 1, FedProx()), to_client_app(client_fn), strict=True)


def test_both_halves_of_a_composition_are_asked_for():
    kind = clients.propfair.proportional(clients.ScaffoldClient)
    run(PropFair(Scaffold()), app_of(kind), strict=True)
    with pytest.raises(ValueError, match="PropFair: 3 of 3 clients"):
        run(PropFair(Scaffold()), app_of(clients.ScaffoldClient), strict=True)


def test_flowers_own_loop_hears_too(caplog):
    """A wrapper of Flower's brings its own loop."""
    wrapper = flower.DifferentialPrivacyServerSideFixedClipping(PropFair(FedProx()), 0.1, 1.0, 3)
    start = ArrayRecord(small_net(0).state_dict())
    wrapper.start(InlineGrid(app_of(FedAvgClient), 3), start, 2, train_config=ConfigRecord(CONFIG))
    said = [r.getMessage().split(":")[0] for r in caplog.records if "client half" in r.getMessage()]
    assert sorted(said) == ["FedProx", "PropFair"]


def test_every_class_with_a_client_half_has_the_clients_that_the_message_names():
    found = {}
    for name in strategies.__all__:
        kind = getattr(strategies, name)
        if isinstance(kind, type) and "client_half" in vars(kind):
            found[name] = kind
    assert set(ASKING) <= set(found)
    assert {f"{name}Loop" for name in LOOPS} <= set(dir(clients))
    for name in found:
        assert hasattr(clients, f"{name}Client"), name
        assert (name in LOOPS) == hasattr(clients, f"{name}Loop"), name
    assert [name for name, _ in asked_of(PropFair(FedProx()))] == ["PropFair", "FedProx"]


@pytest.mark.parametrize("inner", [lambda: TERM(FedAvg()), FedDyn])
@pytest.mark.parametrize("ours", [True, False])
def test_privacy_around_what_takes_more_than_an_average_is_noticed(inner, ours, caplog):
    class Losing(EchoClient):
        def fit(self, parameters, config):
            arrays, number, metrics = super().fit(parameters, config)
            return arrays, number, {**metrics, "loss-before": 1.0}

    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    grid = InlineGrid(to_client_app(lambda context: Losing(1.0)), 3)
    for strategy, heard in ((inner(), 1), (FedAvg(weights="uniform"), 0)):
        caplog.clear()
        wrapper = flower.DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 3)
        if ours:
            run_rounds(wrapper, grid, start, 2)
        else:
            wrapper.start(grid, start, 2)
        assert caplog.text.count("carry no noise") == heard
