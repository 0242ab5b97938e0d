"""A misspelt or foreign argument of a strategy is refused by type checkers, not only
when the program runs.
"""

import inspect
import textwrap
from typing import get_args, get_type_hints

import pytest
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Strategy
from mypy import api

from fedapps import strategies
from fedapps.strategies.fedavg import FlowerArguments

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


@pytest.mark.slow
def test_mypy_refuses_them(tmp_path):
    file = tmp_path / "job.py"
    file.write_text(
        textwrap.dedent(
            """\
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
        )
    )
    output, _, _ = api.run([str(file)])
    lines = [line.split(":")[1] for line in output.splitlines() if ": error: " in line]
    assert lines == ["8", "9", "10"], output
