"""Fixtures of the tests of sweeps: plans and results of a file written here."""

import pytest

from fedapps.lab.sweeps.plan import read_plan
from fedapps.lab.sweeps.tables import Results
from fedapps.records.reader import read_run
from tests.helpers import write_file


@pytest.fixture
def plan_of(tmp_path):
    """`plan_of(text, *assignments, scale=...)` returns the plan of a file with this
    text.
    """

    def plan(text, *assignments, scale=""):
        path = write_file(tmp_path / "grid.toml", text)
        return read_plan(path, assignments, scale, tmp_path / "out")

    return plan


@pytest.fixture
def results_of(plan_of, write_run):
    """`results_of(text, accuracy)` returns the results of a sweep whose run NAME ended
    with `accuracy[NAME]`; None: it failed.
    """

    def results(text, accuracy, **more):
        plan = plan_of(text)
        assert sorted(point.name for point in plan.points) == sorted(accuracy)
        runs = {}
        for name, value in accuracy.items():
            if value is not None:
                last = {"accuracy-mean": value, "ece-mean": 1 - value}
                runs[name] = read_run(write_run(f"out/cells/{name}", last=last, **more))
        return Results(plan, runs)

    return results
