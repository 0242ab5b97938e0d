"""Methods, tasks and nets that installed packages register by entry points: chosen by
name, listed, and no harm if broken.
"""

import sys

import pytest

from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.extensions.own_code import own_files
from fedapps.extensions.registered import registered
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import printed, refused, write_file

CODE = """
from dataclasses import dataclass
from torch import nn
from fedapps.algorithms.common.options import Options, option
from fedapps.clients import FedAvgClient
from fedapps.methods import Method, TorchClient
from fedapps.tasks import Digits
from fedapps.strategies import FedAvg

@dataclass(frozen=True)
class Own(Options):
    pull: float = option(0.5, "how far the server steps", low=0, high=1)

METHOD = Method("steps less far", "nobody 2026", "one global model", lambda o, t, c: FedAvg(), TorchClient(lambda: FedAvgClient),
                options=Own, table="registered-one")

class Task(Digits):
    name = "other-digits"

def net(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""
POINTS = """
[fedapps.methods]
nearer = nearer_package:METHOD
spoilt = nearer_package:MISSING
broken = nearer_broken:METHOD
fedavg = nearer_package:METHOD

[fedapps.tasks]
other-digits = nearer_package:Task

[fedapps.models]
one-layer = nearer_package:net
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package, as Python sees one."""
    site, info = tmp_path / "site-packages", tmp_path / "site-packages" / "nearer-1.2.dist-info"
    write_file(info / "METADATA", "Metadata-Version: 2.1\nName: nearer\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(POINTS)
    (site / "nearer_package.py").write_text(CODE)
    (site / "nearer_broken.py").write_text("import a_package_that_is_not_here\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    for name in ("nearer_package", "nearer_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    registered.cache_clear()
    yield site
    registered.cache_clear()


def test_names_run_like_ours(package, tmp_path):
    chosen, task, _ = assemble(
        with_defaults(
            {
                "method": "nearer",
                "task": "other-digits",
                "model.name": "one-layer",
                "registered-one.pull": 1,
            }
        )
    )
    assert (chosen.method, chosen.options.pull, task.name) == ("nearer", 1.0, "other-digits")
    assert list(task.initial_arrays()) == ["1.weight", "1.bias"]
    assert own_files(chosen.flat()) == {}  # it is installed where clients run
    words = [
        "num-rounds=1",
        "num-clients=2",
        "clients-per-round=0",
        "train.local-epochs=1",
        "--engine",
        "inline",
        "--out",
        "r",
    ]
    assert main(["run", "method=nearer", "task=other-digits", "model.name=one-layer", *words]) == 0
    assert 'method = "nearer"' in (tmp_path / "r" / "settings.toml").read_text()


def test_they_are_listed_with_where_they_come_from_and_broken_ones_cost_a_line(package, capsys):
    assert main(["methods"]) == 0
    out, err = capsys.readouterr()
    (row,) = [line for line in out.splitlines() if line.startswith("nearer ")]
    assert "steps less far" in row
    assert row.rstrip().endswith("nearer 1.2")
    assert not [line for line in out.splitlines() if line.startswith(("spoilt", "broken"))]
    assert sorted(err.splitlines()) == [
        "fedapps: warning: nearer 1.2 registers a method 'fedavg', which is ignored: fedapps "
        "has a method of this name",
        "fedapps: warning: nearer 1.2: method = 'broken': no module "
        "'a_package_that_is_not_here': nearer_broken imports it: install it",
        "fedapps: warning: nearer 1.2: method = 'spoilt': nearer_package "
        f"({package / 'nearer_package.py'}) has no 'MISSING'",
    ]
    assert main(["settings", "nearer"]) == 0
    assert capsys.readouterr().out.startswith("registered-one.pull: number")


def test_unknown_names_are_answered_with_similar_ones(package):
    for given, said in (
        ({"method": "neerer"}, "did you mean 'nearer'"),
        ({"task": "other-digit"}, "did you mean 'other-digits'"),
    ):
        refused(lambda: with_defaults(given), said, UserError)
    for call, message in (
        (lambda: assemble(with_defaults({"model.name": "one-layers"})), "did you mean 'one-layer'"),
        (
            lambda: with_defaults({"method": "broken"}),
            "no module 'a_package_that_is_not_here': nearer_broken imports it",
        ),
    ):
        refused(call, message, UserError)


def test_our_names_are_found_without_looking_for_others():
    """Reading the metadata of all packages takes longer than everything else that a
    command does before it starts.
    """
    code = (
        "import fedapps.extensions.registered as r, fedapps.commands.parser\n"
        "r.registered = None\n"
        "from fedapps.settings.reading import read_settings\n"
        "read_settings({'method': 'term', 'term.base': 'fedadam', 'task': 'digits', 'model.name': "
        "'mlp'})"
    )
    printed("-c", code)
