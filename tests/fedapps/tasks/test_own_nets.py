"""A user's own frozen nets as FedBoost's library: a module with the class, a folder of
weights, one line for each mistake.
"""

import importlib
import re
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch.nn import functional

from tests.helpers import run_inline

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return self.layers(self.scale * x)


class Wide(Net):
    def __init__(self):
        super().__init__(32)


"""


@pytest.fixture
def zoo(tmp_path, modules, monkeypatch):
    """A file with nets, and a folder with the weights of four: the third can read
    digits, the others were never trained.
    """
    monkeypatch.syspath_prepend(modules(zoo_net=SOURCE))
    module = importlib.import_module("zoo_net")
    (tmp_path / "zoo").mkdir()
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = (x / 16).float().reshape(-1, 1, 8, 8)
    for k in range(4):
        torch.manual_seed(k)
        net = module.Net()
        optimiser = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(60 if k == 2 else 0):
            optimiser.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        save_file(net.state_dict(), tmp_path / "zoo" / f"hospital-{k}.safetensors")
    return tmp_path


JOB = [
    "method=fedboost",
    "task=ensemble-classification",
    "ensemble.share=0",
    "num-clients=5",
    "fedboost.budget=2",
]
OWN = [*JOB, "model.name=zoo_net:Net", "fedboost.library=zoo"]


def test_the_net_that_can_read_gets_the_weight(zoo):
    job = ("fedboost.step=0.5", "num-rounds=40", "evaluate-every=40", "checkpoint-every=0")
    found = run_inline(zoo / "r", *OWN, *job)
    assert load_file(zoo / "r" / "model.safetensors")["alpha-last"][2] > 0.7
    assert found["loss-weighted"] < 0.6 * found["uniform-loss-weighted"]
    assert found["pooled-single"] == 2.0
    assert found["pooled-single-accuracy"] > 0.9
    # whatever directory the server runs in
    assert f'library = "{zoo}/zoo"' in (zoo / "r" / "settings.toml").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.name=zoo_net:Nte"], "model.name = 'zoo_net:Nte'"),
        (
            ["model.name=zoo_net:Wide"],
            "model.name = 'zoo_net:Wide' wants (32, 64): choose the model that the predictors were "
            "trained",
        ),
        (["model.name=mlp"], "but model.name = 'mlp' wants"),
        (
            ["fedboost.library=task"],
            "library = 'task', but with ensemble.share = 0.0 there are no samples to train nets on",
        ),
        (["fedboost.library=zoo2"], "there is no such folder"),
        (["fedboost.library=torn"], "torn/hospital-0.safetensors cannot be read as safetensors"),
        (["fedboost.budget=5"], "budget = 5, but the library holds 4 predictors: choose 1 to 4"),
    ],
)
def test_mistakes_are_one_line(zoo, settings, message, error_of):
    (zoo / "torn").mkdir()
    (zoo / "torn" / "hospital-0.safetensors").write_bytes(
        (zoo / "zoo" / "hospital-0.safetensors").read_bytes()[:-9]
    )
    command = ("run", "--engine", "inline", *OWN, *settings)
    assert message in error_of(*command, "--out", zoo / "r")


def test_the_page_is_right(tmp_path, modules, monkeypatch):
    """Its file makes a folder of weights, and its command runs with them."""
    page = (Path(__file__).parents[3] / "docs" / "fedboost.md").read_text(encoding="utf-8")
    (code,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", page, re.S)
        if "class Net(nn.Module)" in code
    )
    (command,) = re.findall(r"```sh\nfedapps (run [^`]*zoo_net:Net[^`]*)\n```", page)
    monkeypatch.syspath_prepend(modules(zoo_net=code))
    runpy.run_path("zoo_net.py", run_name="__main__")
    _, *settings = command.replace("\\\n", " ").split()
    run_inline(tmp_path / "r", *settings, "num-rounds=2", "evaluate-every=2")
    assert load_file(tmp_path / "r" / "model.safetensors")["alpha"].shape == (3,)
