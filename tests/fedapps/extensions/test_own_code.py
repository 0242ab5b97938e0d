"""A method and a task of the user's own by ``module:name``: mistakes in one line,
tables of settings, what runs them.
"""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from fedapps.commands.parser import main
from fedapps.engines.app_folder import copy_app
from fedapps.errors import UserError
from fedapps.extensions.own_code import own_files
from fedapps.extensions.registered import registered
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import default_config, read_settings
from tests.helpers import printed, refused, write_file

CODE = """
from dataclasses import dataclass, field, replace
from fedapps.algorithms.common.options import Options, option
from fedapps.clients import FedAvgClient
from fedapps.methods import METHODS, Method, TorchClient
from fedapps.tasks import Digits
from fedapps.tasks.registry import TaskKind
from fedapps.strategies import FedAvg, FedAvgOptions, TERM
import my_client

@dataclass(frozen=True)
class Own(Options):
    pull: float = option(0.5, "how far the server steps", low=0, high=1)
    base: str = option("fedavg", "the method that it wraps")

@dataclass(frozen=True)
class Listed(Options):
    rates: list = field(default_factory=list)

class Plain(Options):
    pass

def method(**changes):
    parts = dict(summary="", paper="", trait="", strategy=lambda o, t, c: FedAvg(), client=TorchClient(my_client.kind))
    return Method(**{**parts, **changes})

METHOD = method(options=Own, table="own")
BARE = method()
HALF = method(client=None)
TAKEN = method(options=Own, table="superfed")
SAME = method(options=FedAvgOptions, table="fedavg")
NO_TABLE = method(options=Own)
LISTED = method(options=Listed, table="own")
PLAIN = method(options=Plain, table="own")
DICT = method(options={}, table="own")
LOSING = method(loss=lambda kind: kind)
WRAPS = method(strategy=None, client=None, wrap=lambda strategy, options: TERM(strategy), options=Own, table="own")
BROKEN = method(strategy=lambda o, t, c: FedAvg().missing)
NO_STRATEGY = method(strategy=lambda o, t, c: "fedavg")
REFUSED = method(options=Own, table="own", strategy=lambda o, t, c: FedAvg(fraction_train=o.pull + 1))
BAD_CLIENT = method(client=lambda o, t, i, n, store: 1 / 0)
NO_CLIENT = method(client=lambda o, t, i, n, store: None)
IMAGES = method(tasks=("classification", "digits"))
FOR_OWN = method(tasks=("my_code:TASK",))

class Task(Digits):
    name = "my-digits"

class Ill(Digits):
    def check(self, num_clients):
        raise KeyError("age")

class Empty:
    def __init__(self, options, context): ...

@dataclass(frozen=True)
class Other(Options):
    size: int = option(1, "", low=1)

TASK = TaskKind(Task, Other, "mine")
LIKE = TaskKind(Task, like="digits")
CLASHING = TaskKind(Task, Other, "own")
ODD = TaskKind(Task, like="digit")
number = 3
"""
CLIENT = """
def kind():
    import my_lazy
    return my_lazy.FedAvgClient
"""


@pytest.fixture
def folder(modules):
    """A current folder with modules of the user's, the last of which is only imported
    where a client is made.
    """
    lazy = "from fedapps.clients import FedAvgClient\n"
    return modules(my_code=CODE, my_client=CLIENT, my_lazy=lazy, unused="")


def settings(*pairs, **given):
    return with_defaults({"task": "digits", **given, **dict(pairs)})


def test_its_options_are_a_table_of_settings(folder):
    chosen = settings(("method", "my_code:METHOD"), ("own.pull", 1), ("task", "my_code:TASK"))
    assert (chosen.options.pull, chosen.problem.size) == (1.0, 1)
    flat = chosen.flat()
    assert (flat["method"], flat["own.pull"]) == ("my_code:METHOD", 1.0)
    assert read_settings(flat) == chosen
    assert set(default_config(flat)) - set(default_config()) == {
        "own.pull",
        "own.base",
        "mine.size",
    }


def test_the_settings_command_explains_it(folder, capsys, error_of):
    assert main(["settings", "my_code:METHOD"]) == 0
    assert capsys.readouterr().out.startswith(
        "own.pull: number, default 0.5, [0, 1]\n    how far the server steps\n"
    )
    assert main(["settings", "my_code:TASK"]) == 0
    assert "mine.size: whole number" in capsys.readouterr().out
    assert "has no options, so there is nothing to explain" in error_of("settings", "my_code:BARE")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "my_code:METHODS_"}, "method = 'my_code:METHODS_': did you mean 'METHODS'\\? my_code (.*) has no " "'METHODS_'"),
        ({"method": "my_cod:METHOD"}, "method = 'my_cod:METHOD': no module 'my_cod': it is neither in the current folder"),
        ({"method": "my_code:number"}, "method = 'my_code:number': is of type int, not a fedapps.methods.Method: write METHOD " "= " "Method"),
        ({"method": "my_code:FedAvg"}, "method = 'my_code:FedAvg': is the class FedAvg, not a fedapps.methods.Method"),
        ({"method": "my_code:HALF"}, "method = 'my_code:HALF': has no client"),
        ({"method": "my_code:LOSING"}, "method = 'my_code:LOSING': has a loss for another method's clients, but wraps no method"),
        ({"method": "my_code:TAKEN"}, "method = 'my_code:TAKEN': its table name 'superfed' is taken by this project: choose another"),
        ({"method": "my_code:NO_TABLE"}, "method = 'my_code:NO_TABLE': options = 'Own': table = '': name its table"),
        ({"method": "my_code:LISTED"}, "method = 'my_code:LISTED': options = 'Listed': 'rates' needs a default"),
        ({"method": "my_code:PLAIN"}, "method = 'my_code:PLAIN': options = 'Plain': must be a @dataclass"),
        ({"method": "my_code:DICT"}, "method = 'my_code:DICT': options = {}: must be a @dataclass"),
        ({"task": "my_code:number"}, "task = 'my_code:number': is a int, no class of a task and no " "fedapps.tasks.registry.TaskKind"),
        ({"task": "my_code:ODD"}, "task = 'my_code:ODD': like = 'digit': did you mean 'digits'"),
        ({"task": "my_code:Empty"}, "task = 'my_code:Empty': Empty has no 'name'"),
        ({"task": "my_code:Ill"}, "task = 'my_code:Ill': check failed: KeyError: 'age' \\(my_code.py, line " "\\d+\\)$"),
        ({"task": "my_code:TASK", "method": "fedevg"}, "task = 'my_code:TASK': this method runs on classification, digits; like = "),
        ({"method": "my_code:METHOD", "task": "my_code:CLASHING"}, "method = .*: its table name 'own' is taken by task = 'my_code:CLASH"),
        ({"method": "my_code:BROKEN"}, "method = .*: cannot make its strategy: AttributeError: .*missing.* " "\\(my_code.py, line"),
        ({"method": "my_code:NO_STRATEGY"}, "method = 'my_code:NO_STRATEGY': its strategy is a str: it must be a Strategy of Flower"),
        ({"method": "my_code:REFUSED"}, "own.fraction_train = 1.5: "),
        ({"method": "my_code:BAD_CLIENT"}, "method = .*: cannot make a client: ZeroDivisionError: division by zero " "\\(my_code.py,"),
        ({"method": "my_code:NO_CLIENT"}, "method = 'my_code:NO_CLIENT': its client is a NoneType: it must be a flwr.client.NumPyClient"),
        ({"method": "term", "term.base": "my_code:number"}, "term.base = 'my_code:number': is of type int, not a fedapps.methods.Method"),
        ({"method": "warm-start", "warm-start.then": "my_code:x"}, "warm-start.then = 'my_code:x': choose one of fedavg"),
        ({"method": "my_code:FOR_OWN", "task": "digits"}, "task = 'digits': this method runs on my_code:TASK"),

        ({"method": "my_code:METHOD", "own.pull": 2}, r"own.pull = 2.0: choose a value in \[0, 1\]"),
        ({"method": "my_code:METHOD", "own.pull": "far"}, r"own.pull = 'far': must be a number"),
        ({"method": "my_code:METHOD", "own.pul": 1}, "unknown setting 'own.pul': did you mean 'own.pull'"),
        ({"own.pull": 1}, "unknown setting 'own.pull'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(folder, given, said):
    refused(lambda: assemble(settings(**given)), f"^{said}", UserError)


@pytest.mark.parametrize(
    "given",
    [
        {"method": "my_code:SAME"},  # a table of ours with the options of ours
        {"method": "my_code:WRAPS"},
        {"method": "my_code:WRAPS", "own.base": "my_code:BARE"},
        {"method": "term", "term.base": "my_code:METHOD", "own.pull": 1.0},
        {"method": "my_code:IMAGES", "task": "my_code:LIKE"},
        {"method": "fedper", "task": "my_code:Task"},
        {"method": "my_code:FOR_OWN", "task": "auto"},
    ],
)
def test_what_it_can_be_combined_with(folder, given):
    chosen, task, _ = assemble(settings(**given))
    assert read_settings(chosen.flat()).flat() == chosen.flat()
    assert task.name == ("my-digits" if str(given.get("task", "")) != "" else "digits")


def test_the_app_that_is_submitted_has_its_files_and_knows_its_settings(folder):
    chosen, *_ = assemble(settings(method="my_code:METHOD", task="my_code:TASK"))
    config = chosen.flat()
    files = own_files(config)
    # the last one since a client has been made
    assert set(files) == {"my_code.py", "my_client.py", "my_lazy.py"}
    app = copy_app(folder / "copy", files, config)
    listed = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert {name: listed["config"].get(name) for name in ("own", "mine")} == {
        "own": {"pull": 0.5, "base": "fedavg"},
        "mine": {"size": 1},
    }
    assert "train" in listed["config"]
    assert {*files, "/LICENSE"} <= set(listed["fab-include"])
    assert {path.name for path in app.glob("*.py")} == set(files)


def test_a_sweep_varies_its_settings_and_leaves_them_to_it(folder, capsys, error_of):
    Path("grid.toml").write_text(
        'method = ["my_code:METHOD", "fedavg"]\nown.pull = [0.25, 0.75]\nnum-rounds = '
        "1\nnum-clients = 2\nclients-per-round = 0\n"
        '[[when]]\nmethod = "my_code:METHOD"\nset = {train.local-epochs = 2}\n[[when]]\n"own.pull" '
        "= 0.75\nset = {seed = 1}\n"
    )
    assert main(["sweep", "grid.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    for name in ("my_code-METHOD_pull-0.25", "my_code-METHOD_pull-0.75", "fedavg"):
        assert re.search(rf"{re.escape(name)}\b", out), out
    assert out.count("my_code-METHOD_") == 2
    said = error_of("sweep", "grid.toml", "own.pull=[2.0]", "--dry-run")
    assert "own.pull = 2.0: choose a value in [0, 1]" in said
    Path("grid.toml").write_text('method = ["my_code:METHOD"]\nown.pul = [1]\n')
    said = error_of("sweep", "grid.toml", "--dry-run")
    assert "unknown setting 'own.pul': did you mean 'own.pull'" in said


# --- names that installed packages register -------------------------------------------


PACKAGE = """
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
    (site / "nearer_package.py").write_text(PACKAGE)
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "neerer"}, "did you mean 'nearer'"),
        ({"task": "other-digit"}, "did you mean 'other-digits'"),
        ({"model.name": "one-layers"}, "did you mean 'one-layer'"),
        (
            {"method": "broken"},
            "no module 'a_package_that_is_not_here': nearer_broken imports it",
        ),
    ],
)
def test_unknown_names_are_answered_with_similar_ones(package, given, said):
    refused(lambda: assemble(with_defaults(given)), said, UserError)


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
