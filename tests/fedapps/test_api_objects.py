"""Data and nets of a script or notebook, given as objects: the numbers of the same data
in a file and the same net in a module; what cannot be used is refused.
"""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import fedapps
from fedapps.errors import UserError
from tests.helpers import lacking, printed, refused

pandas = pytest.importorskip("pandas")
JOB = {
    "num_rounds": 2,
    "clients_per_round": 0,
    "evaluate_every": 1,
    "train": {"local_epochs": 1},
    "progress": False,
}


@pytest.fixture
def table():
    """Three hospitals, two columns of numbers, one of text, and an outcome in words."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=90)
    return pandas.DataFrame(
        {
            "age": rng.normal(50 + 9 * y, 8).round(2),
            "glucose": rng.normal(5 + y, 1).round(3),
            "hospital": np.repeat(["bern", "graz", "oslo"], 30),
            "outcome": np.where(y, "ill", "well"),
        }
    )


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Runs leave their files in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "cache"))


def clients(run):
    return (run.folder / "clients.csv").read_text()


# --- data -----------------------------------------------------------------------------


def test_a_dataframe_gives_the_numbers_of_its_csv(table):
    table.to_csv("visits.csv", index=False)
    file = fedapps.run(
        data={"source": "visits.csv", "label": "outcome", "natural_id": "hospital"},
        out="file",
        **JOB,
    )
    memory = fedapps.run("fedavg", data=table, label="outcome", client="hospital", out="m", **JOB)
    assert clients(memory) == clients(file)
    inside = {"source": table, "natural_id": "hospital"}
    again = fedapps.run("fedavg", data=inside, label="outcome", out="n", **JOB)
    assert clients(again) == clients(file)
    assert again.settings["data.source"] == memory.settings["data.source"], "written once"
    assert memory.model()(torch.zeros(1, 1, 1, 2)).shape == (1, 2)


def test_arrays_give_the_numbers_of_their_npz():
    rng = np.random.default_rng(1)
    x = rng.integers(256, size=(60, 2, 4, 4)).astype(np.uint8)
    y, client = rng.integers(3, size=60), np.repeat(["a", "b"], 30)
    np.savez("arrays.npz", x=x, y=y, client=client)
    file = fedapps.run(data={"source": "arrays.npz", "natural_id": "client"}, out="file", **JOB)
    memory = fedapps.run(data={"x": x, "y": y, "client": client}, out="memory", **JOB)
    assert clients(memory) == clients(file)
    odd = {"x": torch.from_numpy(x), "y": pandas.Series(y), "client": client}
    assert clients(fedapps.run(data=odd, out="t", **JOB)) == clients(file)
    dealt = fedapps.partition(data=(x, y), num_clients=4)
    assert dealt.table[["train", "validation", "test"]].to_numpy().sum() == 60
    mixed = {"x": x, "y": y, "partition": "dirichlet", "alpha": 0.5}
    assert len(fedapps.partition(data=mixed, num_clients=3).table) == 3


def test_what_other_processes_and_pandas_types_need(table):
    """Categories are text, an unnamed index is no column, column names are text."""
    plain = fedapps.partition(data=table, label="outcome", client="hospital").table
    odd = table.astype({"hospital": "category"})[::-1][::-1]
    odd.index = odd.index + 7
    assert fedapps.partition(data=odd, label="outcome", client="hospital").table.equals(plain)
    numbered = table.rename(columns={"outcome": 3})
    assert fedapps.partition(data=numbered, label=3, client="hospital").table.equals(plain)


def test_data_that_cannot_be_used_are_refused(table):
    x, y = np.zeros((4, 3)), np.zeros(4, int)
    table.to_csv("visits.csv", index=False)
    for given, said in (
        ({"data": (x, y[:3])}, r"data: arrays differ in length \(x 4, y 3\)"),
        ({"data": (x,)}, r"data: a tuple is \(x, y\), two arrays"),
        ({"data": (x, [0, 1, 0, 1])}, "data: y is of type list"),
        ({"data": x}, "data: is of type ndarray: .* a DataFrame"),
        ({"data": {"x": x}}, "data: x is given without y"),
        ({"data": {"x": x, "y": y, "z": y}}, "data: 'z' is an array: .* x, y, client and part"),
        ({"data": {"x": x, "y": y, "source": "digits"}}, "data: source is given beside arrays"),
        ({"data": {"x": x, "y": y, "label": "y"}}, "data: label is given beside arrays"),
        (
            {"data": (x, y), "client": "c"},
            "client = 'c': the table of arrays has the columns x, y",
        ),
        (
            {"data": {"source": table, "test": "test"}},
            "data.test = 'test': .* single table: .*data.part",
        ),
        ({"data": {"source": "visits.csv", "test": "test"}, "label": "outcome"}, "single table"),
        ({"data": (x > 0) * 1j, "label": "y"}, "data: is of type ndarray"),
        ({"data": (x * 1j, y)}, "data: array 'x' holds complex128"),
        ({"data": (np.ma.masked_array(x), y)}, "data: array 'x' is a masked array"),
        ({"data": (np.array(1.0), y)}, "data: array 'x' is a single value"),
        (
            {"data": table.set_index("hospital")},
            r"data: its index is named 'hospital': .*reset_index",
        ),
        ({"data": table.assign(odd=[1, "a", *[None] * 88])}, "data: column 'odd'"),
        (
            {"data": table, "label": "outcome", "client": "age2"},
            "client = 'age2': the DataFrame has the columns age",
        ),
        (
            {"data": {"source": table, "label": "y"}, "label": "outcome"},
            "label = 'outcome': .* twice",
        ),
        (
            {"data": table, "label": "outcome", "engine": "deployment"},
            "data: sites read their own files",
        ),
        ({"train": {"learning_rate": x}}, "train.learning-rate: is of type ndarray"),
    ):
        refused(lambda: fedapps.run(**{**JOB, **given}), said, UserError)
    doubled = pandas.concat([table, table[["age"]]], axis=1)
    refused(
        lambda: fedapps.partition(data=doubled, label="outcome"),
        "data: several columns are called 'age'",
        UserError,
    )


# --- nets -----------------------------------------------------------------------------

CELLS = """
import torch
from torch import nn
import torch.nn.functional as F
from collections import OrderedDict as Ordered

WIDTH = 8


def squash(x):
    return F.relu(x)


class Base(nn.Module):
    def forward(self, x):
        return self.last(squash(self.body(x)))


class Net(Base):
    head = ("last.",)

    def __init__(self, input_shape, num_classes, width=WIDTH):
        super().__init__()
        channels, height, width_ = input_shape
        parts = Ordered(flat=nn.Flatten(), one=nn.Linear(channels * height * width_, width))
        self.body = nn.Sequential(parts)
        self.last = nn.Linear(width, num_classes)


def build(input_shape, num_classes):
    return Net(input_shape, num_classes, width=4)
"""
SCRIPT = """
import fedapps
job = {job!r}
if __name__ == "__main__":
    runs = [fedapps.run(model=one, out=name, num_clients=3, **job)
            for name, one in {nets}]
    assert isinstance(runs[0].model(), __import__("torch").nn.Module)
"""


@pytest.mark.slow
def test_a_net_of_the_script_gives_the_numbers_of_its_module():
    """Its file is written beside the script; test_own_method_example sends such a file
    through Ray.
    """
    nets = {"a": "Net", "b": "build"}  # a class, and a function that uses it
    Path("nets.py").write_text(CELLS)
    given = ", ".join(f'("{name}", {net})' for name, net in nets.items())
    Path("cells.py").write_text(CELLS + SCRIPT.format(job=JOB, nets=f"[{given}]"))
    printed("cells.py")
    for name, net in nets.items():
        file = fedapps.run(model=f"nets:{net}", num_clients=3, out=f"{name}-file", **JOB)
        assert clients(fedapps.load(name)) == clients(file)


@pytest.fixture
def cell(monkeypatch):
    """Runs source as a cell of a notebook does: in __main__, known to linecache."""
    import linecache

    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(source, keep=True):
        name = f"<cell {hash(source)}>"
        if keep:
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), vars(main))
        return main

    return run


def test_a_net_of_a_cell_is_written_with_what_it_uses(cell):
    main = cell(CELLS)
    run = fedapps.run(model=main.Net, num_clients=3, out="a", **JOB)
    name = run.settings["model.name"]
    text = Path(*name.partition(":")[0].split(".")).with_suffix(".py").read_text()
    assert lacking(text, "import torch.nn as nn", "WIDTH = 8") == []
    assert "def build" not in text, "it does not use this"
    Path("nets.py").write_text(CELLS)
    file = fedapps.run(model={"name": "nets:Net"}, num_clients=3, out="b", **JOB)
    assert clients(run) == clients(file)
    cell("WIDTH = 16")
    other = fedapps.run(model=main.Net, num_clients=3, out="c", **JOB)
    assert other.settings["model.name"] != name, "another value is another net"
    assert fedapps.load("a", trust=True).model().last.in_features == 8
    sweep = fedapps.sweep(model=[main.Net], num_clients=3, jobs=1, out="s", **JOB)
    assert clients(next(iter(sweep.runs.values()))) == clients(other)


def test_nets_that_other_processes_cannot_get_are_refused(cell):
    main = cell(
        CELLS
        + """
table = torch.zeros(3)
def uses_a_tensor(num_classes):
    return nn.Linear(3, num_classes, bias=table.sum() > 0)
def outer():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
    return Inner
Inner = outer()
short = lambda num_classes: nn.Linear(3, num_classes)
"""
    )
    gone = cell("def gone(num_classes):\n    return None\n", keep=False).gone
    for net, said in (
        (main.Net((1, 8, 8), 10), "model: is an object of type Net: give the class or a function"),
        (main.uses_a_tensor, "model: uses_a_tensor uses 'table', of type Tensor"),
        (main.Inner, r"model: outer.<locals>.Inner is defined inside"),
        (main.short, "model: <lambda> is"),
        (gone, "model: the source of gone is not known: .* file"),
        (torch.nn.Linear, "'torch.nn.modules.linear:Linear': its parameter 'in_features'"),
    ):
        refused(lambda: fedapps.run(model=net, num_clients=3, **JOB), said, UserError)
    refused(lambda: fedapps.run(main.build, **JOB), "method: other processes", UserError)
