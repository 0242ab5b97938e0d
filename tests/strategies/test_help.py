"""What `help` shows of the public classes, and that its examples run."""

import ast
from inspect import isabstract
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fedapps
from fedapps import clients, strategies
from fedapps.algorithms.common.options import Options
from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from tests.helpers import EchoClient

PUBLIC = [(package, name) for package in (strategies, clients) for name in package.__all__]
METHODS = [
    name
    for name in strategies.__all__
    if hasattr(kind := getattr(strategies, name), "aggregate_train") and not isabstract(kind)
]
#: Their examples name what the user has to make, or their clients do more than train.
CONSTRUCTED = {"ClassMeans", "FFGBDistill", "FedAvgDistill", "FedBoost", "AFLBoost", "FedDM"}
CONSTRUCTED |= {"FedEvg", "FedGenerator", "FedFW", "ProjectedFedAvg", "DFWTrace", "Scaffold"}
CONSTRUCTED |= {"HistogramBoosting", "FFGB", "SecureSum", "QFedAvg", "PrivateSum", "IFCA"}


class Client(EchoClient):
    def fit(self, parameters, config):
        arrays, number, metrics = super().fit(parameters, config)
        return arrays, number, {**metrics, "loss-before": 1.0, "alpha": 0.5}


@pytest.mark.parametrize(("package", "name"), PUBLIC)
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


@pytest.mark.parametrize("name", METHODS)
def test_the_example_of_a_strategy_runs(name):
    text = getattr(strategies, name).__doc__.partition("Example:\n\n")[2].partition("\n\nSource")[0]
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    assert len(lines) <= 5
    start = ArrayRecord(
        {name: Array(np.zeros(2, np.float32)) for name in ("fc1.weight", "fc2.weight")}
    )
    names = {
        "grid": InlineGrid(to_client_app(lambda context: Client(1.0)), 8),
        "initial_arrays": start,
        "domain": NuclearBall((2, 2), 1.0) if name == "DFWTrace" else L1Ball((2,), 1.0),
        **dict.fromkeys(("evaluator", "distiller", "library", "net", "classifier")),
    }
    if name in CONSTRUCTED:
        made = {"library", "distiller", "net", "classifier"}
        if not any(word in lines[-2] for word in made):
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
        with pytest.raises(ImportError, match=right):
            exec(f"from fedapps.strategies import {wrong}")
        with pytest.raises(AttributeError, match=right):
            getattr(strategies, wrong)
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
