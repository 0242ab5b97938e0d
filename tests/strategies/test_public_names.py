"""What the public names take and show: `help` and its examples, signatures for type
checkers, and arguments of another kind than declared.
"""

import ast
import inspect
import re
from contextlib import nullcontext
from inspect import isabstract
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg, Strategy

import fedapps
from fedapps import clients, strategies
from fedapps.algorithms.common.options import Options
from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import SecureApp, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    APFL,
    AAggFFS,
    FedAdam,
    FedAvg,
    FedFW,
    FedProx,
    FedProxOptions,
    FedRep,
    Robust,
    RobustOptions,
    SecureSum,
    SuPerFed,
    SuPerFedOptions,
    TooFewReplies,
    run_rounds,
)
from fedapps.strategies.fedavg import FlowerArguments
from tests.helpers import EchoClient, refused

METHODS = [
    name
    for name in strategies.__all__
    if hasattr(kind := getattr(strategies, name), "aggregate_train") and not isabstract(kind)
]
#: Their examples name what the user has to make, or their clients do more than train.
CONSTRUCTED = {"ClassMeans", "FFGBDistill", "FedAvgDistill", "FedBoost", "AFLBoost", "FedDM"}
CONSTRUCTED |= {"FedEvg", "FedGenerator", "FedFW", "ProjectedFedAvg", "DFWTrace", "Scaffold"}
CONSTRUCTED |= {"HistogramBoosting", "FFGB", "SecureSum", "QFedAvg", "PrivateSum", "IFCA"}
CONSTRUCTED |= {"FedProto", "FedTGP", "FedMD", "FedMDFG", "SiteBoosting"}


@pytest.mark.parametrize("name", METHODS)
def test_the_example_of_a_strategy_runs(name):
    text = getattr(strategies, name).__doc__.partition("Example:\n\n")[2].partition("\n\nSource")[0]
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    assert len(lines) <= 5
    start = ArrayRecord(
        {name: Array(np.zeros(2, np.float32)) for name in ("fc1.weight", "fc2.weight")}
    )
    client = EchoClient(1.0, metrics={"loss-before": 1.0, "alpha": 0.5})
    names = {
        "grid": InlineGrid(to_client_app(lambda context: client), 8),
        "initial_arrays": start,
        "domain": NuclearBall((2, 2), 1.0) if name == "DFWTrace" else L1Ball((2,), 1.0),
        **dict.fromkeys(("evaluator", "distiller", "library", "net", "classifier")),
    }
    if name in CONSTRUCTED:
        if not any(word in lines[-2] for word in {"library", "distiller", "net", "classifier"}):
            exec("\n".join(lines[:-1]), names)
    else:
        exec("\n".join(lines), names)
        assert np.isfinite(names["result"].arrays["fc1.weight"].numpy()).all()


def test_names_that_are_meant_are_named():
    for wrong, right in {
        "Superfed": "SuPerFed",
        "SCAFFOLD": "Scaffold",
        "FedPer": "PartialSharing",
    }.items():
        refused(lambda: exec(f"from fedapps.strategies import {wrong}"), right, ImportError)
        refused(lambda: getattr(strategies, wrong), right, AttributeError)
    assert fedapps.__version__


@pytest.mark.parametrize("package", [strategies, clients])
def test_type_checkers_see_no_name_that_there_is_not(package):
    """A `__getattr__` that they see would make every name valid, as Any."""
    seen = [
        node
        for node in ast.parse(Path(package.__file__).read_text()).body
        if not isinstance(node, ast.If)
    ]
    assert "__getattr__" not in {
        name
        for node in seen
        for name in (getattr(n, "id", getattr(n, "name", "")) for n in ast.walk(node))
    }


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in (strategies, clients) for name in package.__all__],
)
def test_every_public_class_says_what_it_takes(package, name):
    kind = getattr(package, name)
    assert kind.__doc__
    if not isinstance(kind, type) or issubclass(kind, Exception):
        return
    if issubclass(kind, Options):
        declared = [f for f in kind.__dataclass_fields__.values() if "option" in f.metadata]
        assert all(f.metadata["option"].help in kind.__doc__ for f in declared)
    elif name in METHODS:
        assert "Example:" in kind.__doc__
        assert "Contract" in kind.__doc__


# --- signatures -----------------------------------------------------------------------


KINDS = [
    kind
    for name in strategies.__all__
    if inspect.isclass(kind := getattr(strategies, name)) and issubclass(kind, Strategy)
]


def test_our_arguments_are_flowers():
    assert set(FlowerArguments.__annotations__) == inspect.signature(
        FlowerFedAvg.__init__
    ).parameters.keys() - {"self"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["__init__", "start"])
def test_no_strategy_takes_any_argument(kind, method):
    function = getattr(kind, method)
    for part in inspect.signature(function).parameters.values():
        assert part.kind is not part.VAR_POSITIONAL
        if part.kind is part.VAR_KEYWORD:
            (typed,) = get_args(inspect.get_annotations(function)[part.name])
            assert get_type_hints(typed)


@pytest.mark.parametrize("function", [run_rounds, *(kind.start for kind in KINDS)])
def test_a_run_takes_what_flowers_does(function):
    """In its order, too. ``should_stop`` is Flower's since 1.43."""
    flowers = list(inspect.signature(Strategy.start).parameters)[1:]
    taken = []
    for part in inspect.signature(function).parameters.values():
        typed = get_args(inspect.get_annotations(function)[part.name]) if part.kind == 4 else ()
        taken += get_type_hints(typed[0]) if typed else [part.name]
    assert {*flowers, "should_stop"} <= set(taken)
    assert [name for name in taken if name in flowers] == flowers


@pytest.mark.parametrize("kind", [lambda inner: inner, AAggFFS, SecureSum])
def test_should_stop_ends_any_run(kind):
    """Of a strategy, and of wrappers with a loop of their own and without."""
    app = to_client_app(lambda context: EchoClient(1.0, metrics={"loss-before": 1.0}))
    app = SecureApp(app) if kind is SecureSum else app
    result = kind(FedAvg()).start(
        InlineGrid(app, 3),
        ArrayRecord({"w": Array(np.zeros(2, np.float32))}),
        5,
        should_stop=lambda number, _: number == 2,
    )
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


# --- arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "typed"),
    [
        (lambda: Robust(FedAvg(), RobustOptions()), "RobustOptions(rule='median')"),
        (lambda: Robust(FedAvg(), "median"), "RobustOptions(rule='median')"),
        (lambda: FedRep("fc"), "['fc']"),
        (lambda: FedAdam(0.1), "FedOptOptions(server_learning_rate=0.1)"),
        (lambda: FedAdam(eta=0.1), "FedAdam(FedOptOptions(server_learning_rate=0.1))"),
        (lambda: FedProx(0.1), "FedProxOptions(mu=0.1)"),
        (lambda: FedProx(proximal_mu=0.1), "FedProx(FedProxOptions(mu=0.1))"),
        (lambda: FedProx(mu=0.1), "FedProx(FedProxOptions(mu=0.1))"),
        (lambda: FedProxOptions(mu="0.1"), "FedProxOptions(mu=0.01)"),
        (lambda: FedProxOptions(mu=True), "FedProxOptions(mu=0.01)"),
        (lambda: FedFW("l1"), "Domain (fedapps.algorithms.frank_wolfe)"),
        (lambda: AAggFFS(FedAvg), "FedAvg()"),
        (lambda: AAggFFS(flower.FedAvg), "FedAvg()"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_to_type(make, typed):
    refused(make, re.escape(typed), (TypeError, ValueError))


@pytest.mark.parametrize("name", ["SuPerFed", "APFL"])
@pytest.mark.parametrize("early", [False, True])
def test_an_optimiser_made_before_the_training_is_refused(name, early):
    """It would leave the personal model where it was."""
    torch = pytest.importorskip("torch")
    app, kind = ClientApp(), getattr(clients, f"{name}Loop")

    @app.train()
    def fit(message, context):
        method = kind(lambda: torch.nn.Linear(4, 2), message, context)
        before = torch.optim.SGD(method.model.parameters(), 0.1)

        def train(model, loader, epochs):
            optimiser = before if early else torch.optim.SGD(model.parameters(), 0.1)
            for x, y in loader:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimiser.step()

        method.train(train, [(torch.eye(4), torch.arange(4) % 2)], 1)
        return method.reply({"num-examples": 4})

    strategy = APFL() if name == "APFL" else SuPerFed(SuPerFedOptions(start=0.0))
    model = torch.nn.Linear(4, 2).state_dict()
    refused = pytest.raises(TooFewReplies, match="make it in the function that trains")
    with refused if early else nullcontext():
        strategy.start(InlineGrid(app, 2), ArrayRecord(model), num_rounds=2)
