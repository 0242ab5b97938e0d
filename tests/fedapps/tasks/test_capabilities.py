import pytest

from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.tasks import capabilities
from fedapps.tasks.capabilities import (
    DealsNets,
    DeclaresOrigin,
    HasNaturalClients,
    HasNet,
    HasTable,
    NamesClients,
    NamesNet,
    PredictsNumbers,
    ScalesColumns,
    SplitsSamples,
)

ALL = {
    name
    for name, kind in vars(capabilities).items()
    if getattr(kind, "_is_runtime_protocol", False) and kind.__module__ == capabilities.__name__
}
NET = {HasNet, HasNaturalClients, DeclaresOrigin, NamesNet, DealsNets, NamesClients}


@pytest.mark.parametrize(
    ("task", "method", "kinds"),
    [
        ("digits", "fedavg", {*NET, SplitsSamples, ScalesColumns}),
        ("tabular", "fedavg", {*NET, SplitsSamples, ScalesColumns, HasTable}),
        ("regression", "fedavg", {*NET, SplitsSamples, HasTable, PredictsNumbers, ScalesColumns}),
        ("text", "fedavg", {HasNet, HasNaturalClients, DeclaresOrigin, NamesClients}),
        ("point-mass", "fedboost", {DeclaresOrigin}),
        ("lasso", "fedfw", set()),
    ],
)
def test_a_task_declares_what_it_can_do(task, method, kinds):
    made = build_task(read_settings({"task": task, "method": method, "num-clients": 4}))
    found = {name for name in ALL if isinstance(made, getattr(capabilities, name))}
    assert found - {"HasGroups"} == {kind.__name__ for kind in kinds}
