"""A user's own frozen nets as FedBoost's library: a file with the class, a folder of weights, one line for each mistake."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch.nn import functional

from fedapps.cli import main

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


class Asks(nn.Module):
    def __init__(self, hidden):
        super().__init__()


class Colours(nn.Module):
    def forward(self, x):
        return nn.functional.conv2d(x, torch.zeros(4, 3, 3, 3)).mean((2, 3))


class FewClasses(nn.Module):
    def forward(self, x):
        return torch.zeros(len(x), 2)


function = torch.relu
"""


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A file with nets, and a folder with the weights of four: the third can read digits, the others were never trained."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("own_net_of_this_test", tmp_path / "own_net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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


JOB = ["method=fedboost", "task=ensemble-classification", "ensemble.share=0", "num-clients=5", "fedboost.budget=2"]
OWN = [*JOB, "ensemble.module=own_net.py:Net", "fedboost.library=zoo"]


def run(*arguments):
    return main(["run", "--engine", "inline", *map(str, arguments)])


def test_the_net_that_can_read_gets_the_weight(zoo):
    settings = ["fedboost.step=0.5", "num-rounds=40", "evaluate-every=40", "checkpoint-every=0"]
    assert run(*OWN, *settings, "--out", zoo / "r") == 0
    assert load_file(zoo / "r" / "model.safetensors")["alpha-last"][2] > 0.7
    found = json.loads((zoo / "r" / "summary.json").read_text())
    assert found["loss-weighted"] < 0.6 * found["uniform-loss-weighted"]
    assert found["pooled-single"] == 2.0
    assert found["pooled-single-accuracy"] > 0.9
    named = (zoo / "r" / "settings.toml").read_text()
    assert f'module = "{zoo}/own_net.py:Net"' in named  # whatever directory a worker runs in
    assert f'library = "{zoo}/zoo"' in named


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["ensemble.module=Net"], "ensemble.module = 'Net': write FILE.py:CLASS or MODULE:CLASS"),
        (["ensemble.module=other.py:Net"], "other.py cannot be imported: FileNotFoundError: there is no such file"),
        (["ensemble.module=no_such_module:Net"], "no_such_module cannot be imported: ModuleNotFoundError"),
        (["ensemble.module=broken.py:Net"], "broken.py cannot be imported: SyntaxError"),
        (
            ["ensemble.module=own_net.py:Nte"],
            "has no class Nte of torch.nn.Module: choose among Net, Wide, Asks, Colours, FewClasses",
        ),
        (["ensemble.module=own_net.py:function"], "has no class function of torch.nn.Module"),
        (["ensemble.module=os:system"], "os has no class system of torch.nn.Module: choose among (it has none)"),
        (["ensemble.module=own_net.py:Asks"], "made without arguments and given a sample of 1 x 8 x 8 it fails: TypeError"),
        (["ensemble.module=own_net.py:Colours"], "given a sample of 1 x 8 x 8 it fails: RuntimeError"),
        (
            ["ensemble.module=own_net.py:FewClasses"],
            "returns (1, 2) for one sample, but the data has 10 classes: return logits (n, 10)",
        ),
        (
            ["ensemble.module=own_net.py:Wide"],
            "own_net.py:Wide' wants (32, 64): choose the model that the predictors were trained as",
        ),
        (["fedboost.library=task"], "is for trained nets of your own: name the folder of their weights"),
        (["fedboost.library=zoo2"], "there is no such folder"),
    ],
)
def test_mistakes_are_one_line(zoo, settings, message, capsys):
    (zoo / "broken.py").write_text("class Net(:")
    assert run(*OWN, *settings, "--out", zoo / "r") == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len([line for line in said.splitlines() if line.startswith("fedapps: ")]) == 1
    assert "Traceback" not in said


def test_without_samples_to_train_on_there_is_nothing_to_train(tmp_path, capsys):
    assert run(*JOB, "--out", tmp_path / "r") == 2
    assert "library = 'task', but ensemble.share = 0.0 is for trained nets of your own" in capsys.readouterr().err


def test_with_a_share_of_0_every_sample_is_dealt(zoo):
    from fedapps.data.options import DataOptions
    from fedapps.data.partition import load_images
    from fedapps.tasks.base_predictors import divide

    images = load_images(DataOptions())
    mine, rest = divide(images, 0.0, 0)
    assert (len(mine.labels), len(rest.labels)) == (0, len(images.labels))
    np.testing.assert_array_equal(rest.labels, images.labels)
