"""A misspelt or foreign argument of a strategy is refused by type checkers, not only
when the program runs.
"""

import inspect
from typing import get_args, get_type_hints

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Strategy

from fedapps import strategies
from fedapps.clients import SecureApp, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import AAggFFS, FedAvg, SecureSum, run_rounds
from fedapps.strategies.fedavg import FlowerArguments
from tests.helpers import EchoClient

KINDS = [
    kind
    for name in strategies.__all__
    if inspect.isclass(kind := getattr(strategies, name)) and issubclass(kind, Strategy)
]


def test_our_arguments_are_flowers():
    given = inspect.signature(FlowerFedAvg.__init__).parameters
    assert set(FlowerArguments.__annotations__) == given.keys() - {"self"}


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
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    result = kind(FedAvg()).start(
        InlineGrid(app, 3), start, 5, should_stop=lambda number, _: number == 2
    )
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


JOB = """\
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from fedapps.strategies import AAggFFS, FedAvg, FedProx, FedProxOptions

def job(grid: Grid, arrays: ArrayRecord) -> None:
    FedProx(FedProxOptions(mu=0.1), fraction_train=0.3)
    AAggFFS(FedAvg()).start(grid, arrays, num_rounds=3)
    FedProx(mu=0.1)
    FedAvg(fraction_trian=0.3)
    AAggFFS(FedAvg()).start(grid, arrays, num_round=3)
"""
#: Only this project is followed, which takes a twentieth of the time.
QUICK = """\
[mypy]
ignore_missing_imports = True
[mypy-torch.*,numpy.*,scipy.*,flwr.*]
follow_imports = skip
"""


@pytest.mark.slow
def test_mypy_refuses_them(tmp_path):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "mypy.ini").write_text(QUICK)
    given = ["--cache-dir", str(tmp_path), "--config-file", str(tmp_path / "mypy.ini")]
    output, _, _ = api.run([*given, str(tmp_path / "job.py")])
    lines = [line.split(":")[1] for line in output.splitlines() if ": error: " in line]
    assert lines == ["8", "9", "10"], output
