"""What no method accepts as an option or as what it wraps: one line that names it."""

import pytest
from flwr.serverapp import strategy as flower

from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import TrainOptions
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
    FedProxOptions,
    FFGBDistillOptions,
    FFGBOptions,
    Local,
    PaceOptions,
    PrivacyOptions,
    Private,
    PrivateSum,
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
)

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
    with pytest.raises(ValueError, match=said):
        make(**given)


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
    with pytest.raises(ValueError, match=why) as caught:
        wrap(make())
    assert "\n" not in str(caught.value)
    assert wrap is not SecureSum or str(caught.value).startswith("secure sums: ")
