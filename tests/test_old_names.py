"""Names that other projects import keep working for one release, with a warning that
says the new one.
"""

import importlib

import pytest

import clients
import strategies
from strategies.base import client_grid, rounds


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [(strategies, "Cohort", "ClientGrid"), (clients, "TwoPhaseClient", "WarmStartClient")],
)
def test_a_renamed_class_is_the_new_one(package, old, new):
    with pytest.warns(
        DeprecationWarning, match=f"{package.__name__}.{old} is now {package.__name__}.{new}"
    ):
        assert getattr(package, old) is getattr(package, new)
    assert old not in dir(package)


def test_a_moved_module_holds_the_same_names():
    with pytest.warns(DeprecationWarning, match=r"strategies.rounds is now strategies.base.rounds"):
        moved = importlib.import_module("strategies.rounds")
    assert moved.run_rounds is rounds.run_rounds
    with pytest.warns(DeprecationWarning, match="client_grid"):
        assert importlib.import_module("strategies.cohort").ClientGrid is client_grid.ClientGrid


def test_a_name_that_never_was_is_unknown():
    with pytest.raises(AttributeError, match="has no attribute 'Kohort'"):
        _ = strategies.Kohort
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("strategies.kohort")
