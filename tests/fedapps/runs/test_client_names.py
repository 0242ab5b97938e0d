"""The names of sites in the data stand for their numbers wherever a person looks."""

import numpy as np
import pytest
from safetensors.torch import load_file

from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.lab.api import load
from fedapps.records.reader import read_run
from fedapps.tasks.client_names import LONGEST, readable
from tests.helpers import lacking, refused, rounds_of, write_csv

HARD = "<b>\x1b[31m" + "x" * 60


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return a folder with 30 rows per plant."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = [
        {"plant": name, "heat": draw.normal() + 3 * fault, "flow": draw.normal(), "fault": fault}
        for name in ("plant-03", "plant-01", "plant-02", HARD)
        for fault in draw.integers(2, size=30)
    ]
    write_csv(tmp_path / "plants.csv", rows, {})
    return tmp_path


def run(out, *more):
    job = ["data.source=plants.csv", "data.natural-id=plant", "data.partition=natural"]
    job += ["data.label=fault", "num-rounds=2", "train.local-epochs=1", "device=cpu"]
    return main(["run", "--engine", "inline", *job, *more, "--out", out])


def test_files_reports_and_models_go_by_the_names(data, capsys):
    assert run("r", "method=aaggff-s", "aaggff.base=fedavg") == 0
    first = capsys.readouterr().out
    assert run("alone", "method=local") == 0
    names = {"plant-01", "plant-02", "plant-03"}
    (hard,) = {row["client"] for row in read_run("r").clients} - names
    assert hard.isprintable()
    assert len(hard) <= LONGEST
    assert {name for _, name, _ in read_run("r").weights} == names | {hard}
    assert set(rounds_of(data / "r")[0]["clients"]) == names | {hard}
    page = (data / "r" / "report.html").read_text()
    assert lacking(page, "plant-01", "<b>\x1b", "<b> [31m") == ["<b>\x1b", "<b> [31m"]
    assert "\x1b[31m" not in first
    assert main(["compare", "r", "alone", "--out", "c"]) == 0
    assert "plant-02" in (data / "c" / "gains.csv").read_text()


def test_a_name_or_a_number_chooses_the_model(data, capsys, caplog, error_of):
    assert run("r", "method=ditto") == 0
    assert main(["export", "r", "--client", "plant-01", "--out", "a.safetensors"]) == 0
    assert main(["export", "r", "--client", "1", "--out", "b.safetensors"]) == 0
    assert str(load_file("a.safetensors")) == str(load_file("b.safetensors"))
    assert "client plant-01" in capsys.readouterr().out
    caplog.clear()
    one, other = load("r", client="plant-01"), load("r").personal_model(1)
    assert str(one.state_dict()) == str(other.state_dict())
    for name, tensor in load_file("a.safetensors").items():
        assert str(one.state_dict()[name]) == str(tensor)
    assert not caplog.records, "no round is run, so Flower logs none"
    assert not lacking(error_of("export", "r", "--client", "plant-9"), "plant-9", "plant-01")
    refused(lambda: load("r", client=99), "choose one of", UserError)


def test_a_resumed_run_keeps_the_names(data):
    more = ["num-rounds=4", "checkpoint-every=1", "num-new-clients=1", "clients-per-round=0"]
    assert run("r", *more) == 0
    whole = (data / "r" / "clients.csv").read_text()
    assert run("r", "--resume", *more) == 0
    assert (data / "r" / "clients.csv").read_text() == whole


def test_names_are_unique_lines_and_mere_numbers_are_no_names(tmp_path):
    assert [readable(names) for names in (["a", "a", " a "], ["a (2)", "a", "a"])] == [
        ("a", "a (2)", "a (3)"),
        ("a (2)", "a", "a (3)"),
    ]
    assert len(set(readable(["y" * 90, "y" * 90 + "z", ""]))) == 3
