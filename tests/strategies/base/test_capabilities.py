"""Capabilities are closed by default: who overrides ``aggregate_train`` says what it
does, or nothing composes with it.
"""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedapps import clients, strategies
from fedapps.algorithms.contract.sent import METHOD
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import FedAvgClient, TrainOptions, answer_identity, to_client_app
from fedapps.clients.propfair import proportional
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    AFL,
    FFGB,
    TERM,
    AAggFFD,
    AAggFFOptions,
    AAggFFS,
    AFLOptions,
    Capabilities,
    DFWTrace,
    Ditto,
    FedAdam,
    FedAvg,
    FedAvgOptions,
    FedBoost,
    FedBoostOptions,
    FedBuff,
    FedBuffOptions,
    FedDyn,
    FedEvg,
    FedEvgOptions,
    FedFWOptions,
    FedMGDA,
    FedMGDAOptions,
    FedOptOptions,
    FedProx,
    FedProxOptions,
    FFGBDistillOptions,
    FFGBOptions,
    Local,
    PaceOptions,
    PrivacyOptions,
    Private,
    PrivateSum,
    PropFair,
    PropFairOptions,
    QFedAvg,
    QFedAvgOptions,
    Robust,
    RobustOptions,
    Scaffold,
    SecureOptions,
    SecureSum,
    SuPerFedOptions,
    TERMOptions,
    WarmStart,
    run_rounds,
)
from fedapps.strategies.base.acknowledgement import LOOPS, asked_of
from fedapps.strategies.base.capabilities import declared, replies_of, sends_updates
from tests.clients.federation import headed, own_app
from tests.helpers import (
    START,
    EchoClient,
    LossyClient,
    Trains,
    arrays_of,
    blobs,
    refused,
    simulate,
    small_net,
)
from tests.strangers import stranger

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
    refused(
        lambda: WRAPPERS[name](SilentFedNova()),
        f"{name}: SilentFedNova overrides aggregate_train and does not say .*: declare",
    )


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
    assert [replies_of(SilentFedNova()), replies_of(SummedFedNova())] == ["model", "update"]
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


# --- the clients' half ----------------------------------------------------------------

# A strategy notices that the clients do not do their half of it.

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


def test_flowers_own_loop_hears_too(caplog):
    """A wrapper of Flower's brings its own loop."""
    wrapper = flower.DifferentialPrivacyServerSideFixedClipping(PropFair(FedProx()), 0.1, 1.0, 3)
    start = ArrayRecord(small_net(0).state_dict())
    wrapper.start(InlineGrid(app_of(FedAvgClient), 3), start, 2, train_config=ConfigRecord(CONFIG))
    assert sorted(line.split(":")[0] for line in half_warnings(caplog)) == ["FedProx", "PropFair"]


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
    run(PropFair(Scaffold()), app_of(proportional(clients.ScaffoldClient)), strict=True)
    refused(
        lambda: run(PropFair(Scaffold()), app_of(clients.ScaffoldClient), strict=True),
        "PropFair: 3 of 3 clients",
    )


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


# --- what no method accepts -----------------------------------------------------------

# As an option or as what it wraps: one line that names it.

RANGE = "choose a value in"
OPTIONS = [
    (FedAvg, {"fraction_train": 1.5}, "fraction_train = 1.5"),
    (FedAvg, {"fraction_evaluate": -0.1}, "fraction_evaluate = -0.1"),
    (FedAvg, {"min_train_nodes": -1}, "min_train_nodes = -1"),
    (FedAvg, {"min_available_nodes": 2.5}, "min_available_nodes = 2.5"),
    (FedAvgOptions, {"weights": "sample"}, "weights = 'sample': did you mean 'samples'"),
    (AAggFFOptions, {"cdf": "norma"}, "cdf = 'norma': did you mean 'normal'"),
    (AAggFFOptions, {"c1": 0.5, "c2": 0.5}, "choose C1 < C2"),
    (AAggFFOptions, {"c1": -0.1}, "c1 = -0.1"),
    (AAggFFOptions, {"ridge": "papers"}, "ridge = 'papers'"),
    (AFLOptions, {"gamma": -1}, RANGE),
    (TERMOptions, {"lambda_": -1}, RANGE),
    (QFedAvgOptions, {"q": -1}, RANGE),
    (QFedAvgOptions, {"lipschitz": -1}, RANGE),
    (FedMGDAOptions, {"epsilon": 1.5}, RANGE),
    (FedMGDAOptions, {"server_learning_rate": -1}, RANGE),
    (PropFairOptions, {"m": 0}, RANGE),
    (FedProxOptions, {"mu": -1.0}, r"mu = .*choose a value in \[0, inf\)"),
    (FedProxOptions, {"mu": float("nan")}, r"mu = .*choose a value in \[0, inf\)"),
    (FedOptOptions, {"server_learning_rate": 0.0}, f"server-learning-rate = 0.0: {RANGE}"),
    (FedOptOptions, {"beta_1": 1.0}, f"beta-1 = 1.0: {RANGE}"),
    (FedOptOptions, {"beta_2": -0.1}, f"beta-2 = -0.1: {RANGE}"),
    (FedOptOptions, {"tau": 0.0}, f"tau = 0.0: {RANGE}"),
    (SuPerFedOptions, {"nu": -0.5}, r"nu = -0\.5: choose a value in"),
    (FedFWOptions, {"lambda_0": -1.0}, "lambda-0 = -1"),
    (FedFWOptions, {"schedule": "convexe"}, "did you mean 'convex'"),
    (FedFWOptions, {"local_steps": 0}, "local-steps = 0"),
    (FedFWOptions, {"batch_size": 3}, "batch-size = 3, schedule = 'convex'"),
    (FFGBDistillOptions, {"step": 10.0, "mu": 0.2}, r"step = 10, mu = 0\.2: .* at most 1"),
    (FFGBDistillOptions, {"distill_loss": "ce"}, "distill-loss = 'ce': "),
    (FFGBOptions, {"local_steps": 0}, "local-steps = 0"),
    (FFGBOptions, {"gamma": 0.0}, r"gamma = 0.0: choose a value in \(0, 1\]"),
    (FFGBOptions, {"schedule": "general", "mu": 0.0}, "schedule = 'general' divides by mu, .* 0"),
    (FFGBOptions, {"loss": "hinge"}, "loss = 'hinge'"),
    (FFGBOptions, {"learner": "tree"}, "did you mean 'trees'"),
    (FFGBOptions, {"depth": 40}, "depth = 40"),
    (lambda **given: FFGB(FFGBOptions(**given)), {"at_once": 3}, "only ffgb-l can make its rounds"),
    (FedEvgOptions, {"low": 0.5}, r"low = 0.5: images have values in \[0, 1\] or \[-1, 1\]"),
    (FedEvgOptions, {"schedule": "linear"}, "schedule = 'linear'"),
    (
        lambda samples: FedEvg((1, 2, 2), 4, None, samples=samples),
        {"samples": 10},
        "samples = 10 is not a multiple of the 4 classes: choose 8 or 12",
    ),
    (FedBoostOptions, {"budget": -1}, "budget = -1"),
    (FedBoostOptions, {"sampling": "even"}, "sampling = 'even'"),
    (FedBoostOptions, {"step": 0.0}, "step = 0.0"),
    (DFWTrace, {"domain": L1Ball((4,), 1.0)}, "L1Ball has no power iteration: choose a nuclear-"),
    (WarmStart, {"first": FedAvg(), "rounds": 0, "then": FedAvg()}, "rounds = 0"),
    (FedBuffOptions, {"staleness": 0.1, "weights": "clients"}, "does not use it"),
    (PaceOptions, {"late": "partial", "over_select": 0.5}, "set deadline"),
    (SecureOptions, {"on": True, "neighbours": 4}, "4: a server that lies could choose them"),
    (SecureOptions, {"on": True, "min_change": 2, "clear_losses": True}, "min-change = 2: weights"),
    (
        SecureOptions,
        {"on": True, "neighbours": 3, "consistency": False},
        "must be an even number",
    ),
    (TrainOptions, {"learning_rate": 0.0}, f"learning-rate = .*: {RANGE}"),
    (TrainOptions, {"batch_size": 0}, f"batch-size = .*: {RANGE}"),
    (TrainOptions, {"momentum": 1.0}, f"momentum = .*: {RANGE}"),
    (TrainOptions, {"lr_decay": 1.1}, f"lr-decay = .*: {RANGE}"),
    (TrainOptions, {"local_epochs": 0}, f"local-epochs = .*: {RANGE}"),
]


@pytest.mark.parametrize(("make", "given", "said"), OPTIONS)
def test_what_is_out_of_range_is_refused(make, given, said):
    refused(lambda: make(**given), said)


# --- what wraps what ------------------------------------------------------------------


class HandsOn(flower.FedAvg):
    """A third-party subclass without declared capabilities."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


class OwnMedian(HandsOn):
    """A third-party median: weights change nothing."""

    capabilities = Capabilities("model", "single replies")


def clipped(strategy):
    """Return a strategy in Flower's own wrapper."""
    return flower.DifferentialPrivacyServerSideFixedClipping(strategy, 1, 1, 5)


def median():
    return Robust(FedAvg(), RobustOptions("median"))


FREE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
PRIVATE = PrivacyOptions(1.0)
SINGLE = "looks at single clients' replies"
COMPOSED = {
    SecureSum: [
        (lambda: AAggFFS(FedAdam()), "set secure.clear-losses = true"),
        (lambda: AFL(FedAvg()), "set secure.clear-losses = true"),
        (lambda: QFedAvg(FedAvg()), SINGLE),
        (lambda: FedMGDA(FedAvg()), SINGLE),
        (median, SINGLE),
        (lambda: flower.Krum(1), SINGLE),
        (lambda: Private(FedAvg(), PRIVATE), "clips single clients' updates"),
        (lambda: clipped(flower.FedAvg()), "clips single clients' updates"),
        (Local, "no vectors that could be added"),
    ],
    lambda inner: Private(inner, PRIVATE): [
        *(
            (make, "and only the average can be private")
            for make in (
                lambda: AFL(FedAvg()),
                lambda: TERM(FedAvg()),
                lambda: FedMGDA(FedAvg()),
                Local,
                flower.FedMedian,
            )
        ),
        (median, "Robust uses more than the average"),
        (lambda: FedBuff(FedAvg()), "FedBuff uses more than the average"),
    ],
    AAggFFD: [
        (
            make,
            r"AAggFFD decides the weights of an average, but \w+ does not average by the weights",
        )
        for make in (
            Local,
            lambda: QFedAvg(FedAvg()),
            lambda: FedMGDA(FedAvg()),
            lambda: FedAvg(weights="uniform"),
            lambda: TERM(FedAvg()),
            median,
            flower.FedMedian,
            flower.FedTrimmedAvg,
            flower.Krum,
            flower.MultiKrum,
            flower.Bulyan,
            lambda: flower.QFedAvg(0.1),
            flower.FedXgbBagging,
            flower.FedXgbCyclic,
            OwnMedian,
        )
    ],
    TERM: [
        (
            lambda: HandsOn(**FREE),
            r"TERM: HandsOn overrides aggregate_train .*: declare capabilities = Capabilities\(",
        ),
        (lambda: clipped(HandsOn(**FREE)), "HandsOn overrides aggregate_train"),
    ],
    lambda inner: FedBuff(inner, FedBuffOptions(weights="clients")): [
        (lambda: FedAvg(weights="uniform"), "FedAvg does not average by the weights"),
    ],
    lambda inner: Robust(inner, RobustOptions("median")): [
        (lambda: FedBuff(FedAvg()), "FedBuff takes more than an average"),
        (
            lambda: FedBoost(lambda arrays: None),
            "robust.rule = 'median': the replies to FedBoost are not models",
        ),
        (
            Scaffold,
            "robust.rule = 'median': Scaffold takes more than an average .*: "
            "choose 'krum', 'multi-krum' or 'none'",
        ),
    ],
    lambda inner: Robust(inner, RobustOptions("krum")): [
        (make, f"robust.rule = 'krum': {name} takes more .*: choose 'none'")
        for name, make in {
            "Private": lambda: Private(FedAvg(), PRIVATE),
            "WarmStart": lambda: WarmStart(FedAvg(), 1, FedDyn()),
            "Robust": lambda: Robust(FedAvg(), RobustOptions("krum")),
        }.items()
    ],
    lambda inner: PrivateSum(inner, PRIVATE): [
        (lambda: AAggFFS(FedAvg()), "only the average can be private"),
        (lambda: QFedAvg(FedAvg()), "only the average can be private"),
    ],
}


@pytest.mark.parametrize(
    ("wrap", "make", "why"), [(wrap, *case) for wrap, cases in COMPOSED.items() for case in cases]
)
def test_what_a_wrapper_cannot_do_its_work_around_is_refused_in_a_line(wrap, make, why):
    refused(lambda: wrap(make()), f"^secure sums: .*{why}" if wrap is SecureSum else why)
