"""Typical mistakes with a csv file and a net in a file: each gives a one-line error
that says how to fix it.
"""

import random

import pytest

from fedapps.commands.parser import main
from fedapps.lab.sweeps import execution
from fedapps.lab.sweeps.pool import PlannedRun
from fedapps.runs.prepare import with_defaults
from fedapps.toml_text import parse_assignment
from tests.helpers import write_csv

OWN = ["data.natural-id=hospital", "data.label=outcome"]
NET = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(input_shape[-1], num_classes))
"""


def rows():
    """Visits to three hospitals of 30 rows each."""
    draw = random.Random(0)
    return [
        {
            "hospital": name,
            "age": draw.randint(20, 90),
            "glucose": round(draw.gauss(5, 1), 2),
            "outcome": draw.randint(0, 1),
        }
        for name in ("bern", "graz", "lyon")
        for _ in range(30)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with visits.csv and my_net.py."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "visits.csv", rows(), {})
    (tmp_path / "my_net.py").write_text(NET)
    return tmp_path


def output_of(capsys, *words, status=2):
    """Return the output of `fedapps data` for the file."""
    assert main(["data", *OWN, *words]) == status
    return capsys.readouterr()


def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(folder, capsys, monkeypatch):
    monkeypatch.setattr("fedapps.data.sources._ask_hub", pytest.fail)
    assert (
        f"data.source = '{folder / 'visit.csv'}': there is no such file: did you mean 'visits.csv'?"
        in output_of(capsys, "data.source=visit.csv").err
    )
    assert "there is no such file" in output_of(capsys, "data.source=sub/folder/visits.parquet").err


def test_a_decimal_comma_is_read_and_said_to_be(folder, capsys):
    commas = [str(row["glucose"]).replace(".", ",") for row in rows()]
    write_csv(folder / "visits.csv", rows(), {"glucose": commas})
    printed = output_of(capsys, "data.source=visits.csv", status=0).out
    assert "note: data.features: glucose: read as numbers with a decimal comma" in printed
    assert (
        "glucose"
        not in output_of(capsys, "data.source=visits.csv", "data.features=age", status=0).out
    )


def test_all_of_few_sites_take_part(folder, error_of):
    """A round has five clients by default. With three hospitals all of them take part,
    also in a sweep that is repeated.
    """
    words = [
        *OWN,
        "data.source=visits.csv",
        "model.name=my_net:Net",
        "num-rounds=1",
        "train.local-epochs=1",
    ]
    assert main(["run", "--engine", "inline", *words, "--out", "run"]) == 0
    assert "clients-per-round = 0" in (folder / "run" / "settings.toml").read_text()
    said = error_of("run", "--engine", "inline", *words, "clients-per-round=4", "--out", "more")
    assert "clients-per-round = 4, but there are 3 clients" in said
    plain = PlannedRun({**with_defaults(dict(map(parse_assignment, words))).flat()}, folder / "run")
    assert execution.is_done(plain)
