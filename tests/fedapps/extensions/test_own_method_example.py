"""`examples/own-method`: a method, a task and a net in one file outside the project, as
README says that they run.
"""

import importlib
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedapps.clients import ClientData, FedAvgClient
from fedapps.clients.base.training import get_arrays
from fedapps.commands.parser import main
from fedapps.models.image_nets import build_model
from fedapps.testing import exams
from fedapps.toml_text import read_toml
from tests.helpers import ROOT, arrays_of, blobs, clients_of, dying_after, lacking, simulate

EXAMPLE = ROOT / "examples" / "own-method"
CONFIG = {"local-epochs": 1, "batch-size": 8, "momentum": 0.9, "seed": 3, "lr-decay": 1.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the example as the current folder."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    monkeypatch.setattr(
        sys, "path", [*(entry for entry in sys.path if entry), str(tmp_path / "example")]
    )
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    return tmp_path / "example"


def run(*words):
    return main(["run", "run.toml", "--engine", "inline", "evaluate-every=3", *map(str, words)])


def test_it_runs_is_recorded_and_resumes_to_the_same_numbers(folder):
    assert run("num-rounds=6", "checkpoint-every=3", "--out", "whole") == 0
    recorded = read_toml(folder / "whole" / "settings.toml")
    # whatever folder clients run in
    assert {name: recorded[name] for name in ("method", "exp.epsilon", "rows.source")} == {
        "method": "own_method:METHOD",
        "exp.epsilon": 0.001,
        "rows.source": str(folder / "patients.csv"),
    }
    assert len(clients_of(folder / "whole")) == 8
    assert np.mean([float(row["accuracy"]) for row in clients_of(folder / "whole")]) > 0.5
    with dying_after(4):
        assert run("num-rounds=6", "checkpoint-every=3", "--out", "parts") == 130
    assert main(["run", "--engine", "inline", "--resume", "--trust", "--out", "parts"]) == 0
    assert clients_of(folder / "parts") == clients_of(folder / "whole")
    assert "own_method:METHOD" in (folder / "whole" / "report.html").read_text()


def test_it_is_swept_beside_ours(folder, capsys):
    job = ["--scale", "small", "seed=[0]", "num-rounds=1", "evaluate-every=1", "--jobs", "1"]
    assert main(["sweep", "methods.toml", *job, "--out", "s"]) == 0
    own = [f"| own_method:METHOD, epsilon = {epsilon} " for epsilon in (0.001, 0.1)]
    table = (folder / "s" / "table.md").read_text()
    assert lacking(table, *own, "| fedavg ", "| fedper ", "| local ") == []


def net(seed):
    return build_model("mlp", (1, 1, 4), 3, seed)


def strange(client, n):
    """Samples whose classes are numbered otherwise for each client, so that their
    updates point elsewhere.
    """
    parts = blobs(client, n)
    turned = [
        replace(part, y=(part.y + client) % 3)
        for part in (parts.train, parts.validation, parts.test)
    ]
    return ClientData(*turned)


def test_one_round_is_the_equation(folder):
    """FedExP's step, from what FedAvg's clients reply: w + eta D, with eta from the
    weighted squared lengths.
    """
    own = importlib.import_module("own_method")
    datas, sent = [strange(i, n) for i, n in enumerate((100, 20, 60))], get_arrays(net(0))
    replies = [
        FedAvgClient(net, data, i).fit(sent, {**CONFIG, "server-round": 1})[0]
        for i, data in enumerate(datas)
    ]
    flat = [
        np.concatenate(
            [(new - old).ravel().astype(float) for old, new in zip(sent, reply, strict=True)]
        )
        for reply in replies
    ]
    samples = np.array([len(data.train) for data in datas])
    p, updates = samples / samples.sum(), np.stack(flat)
    mean = p @ updates
    step = max(1.0, float(p @ (updates**2).sum(1)) / (2 * float(mean @ mean)))
    assert step > 1.05  # else it is FedAvg, and nothing is examined
    start = dict(zip(net(0).state_dict(), sent, strict=True))
    result = simulate(
        own.FedExP(own.ExPOptions(epsilon=0.0)),
        lambda i, _: own.FedExPClient(net, datas[i], i),
        len(datas),
        start,
        1,
        CONFIG,
    )
    moved = np.concatenate([(arrays_of(result)[name] - old).ravel() for name, old in start.items()])
    np.testing.assert_allclose(moved, step * mean, rtol=1e-4, atol=1e-6)


def test_it_passes_the_exams_of_every_method(folder):
    own = importlib.import_module("own_method")
    mine = exams.pair(own.METHOD)
    exams.every(mine)
    exams.stays(mine)
    exams.reduces(exams.pair(own.METHOD, own.ExPOptions(epsilon=1e9)), exams.pair("fedavg"))
