"""What no method accepts as an option or as what it wraps: one line that names it."""

import pytest

from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import TrainOptions
from fedapps.strategies import (
    FFGB,
    AAggFFOptions,
    AFLOptions,
    DFWTrace,
    FedAvg,
    FedBoostOptions,
    FedEvg,
    FedEvgOptions,
    FedFWOptions,
    FedMGDAOptions,
    FedOptOptions,
    FedProxOptions,
    FFGBDistillOptions,
    FFGBOptions,
    PropFairOptions,
    QFedAvgOptions,
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
    (SuPerFedOptions, {"nu": -0.5}, r"nu = -0\.5: choose 0 or more, or -1"),
    (FedFWOptions, {"lambda_0": -1.0}, "lambda-0 = -1"),
    (FedFWOptions, {"schedule": "convexe"}, "did you mean 'convex'"),
    (FedFWOptions, {"local_steps": 0}, "local-steps = 0"),
    (FedFWOptions, {"batch_size": 3}, "batch-size = 3, schedule = 'convex'"),
    (FFGBDistillOptions, {"step": 10.0, "mu": 0.2}, r"step = 10, mu = 0\.2: .* at most 1"),
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
    (FedBoostOptions, {"floor": 0.0}, "floor"),
    (DFWTrace, {"domain": L1Ball((4,), 1.0)}, "L1Ball has no power iteration: choose a nuclear-"),
    (WarmStart, {"first": FedAvg(), "rounds": 0, "then": FedAvg()}, "rounds = 0"),
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
