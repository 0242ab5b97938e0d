"""Data from another party or a disk is never executed, other users cannot read a run,
and no log holds a sample.
"""

import _pickle
import ast
import csv
import io
import os
import pickle
import re

import numpy as np
import pytest

from fedapps.clients import FedAvgClient
from fedapps.commands.parser import main
from tests.helpers import ROOT, run_inline

FILES = [
    path.relative_to(ROOT)
    for package in ("algorithms", "strategies", "clients", "fedapps")
    for path in (ROOT / package).rglob("*.py")
]
LOADERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


#: What a call whose name ends so may not do without this option.
ONLY_WITH = {
    ("np.load", "numpy.load"): ("allow_pickle", "False"),
    ("torch.load", "get_state_dict"): ("weights_only", "True"),
}
NEVER = ("read_pickle", "to_pickle", "yaml.load", "hub.load", "load_state_dict_from_url")


def dangers(source):
    """Return one line for every place where ``source`` could execute what it reads."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        found, modules = [], []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if name in ("eval", "exec", "compile", "__import__") or name.endswith(NEVER):
                found.append(name)
            found += [
                f"{name} without {key}={safe}"
                for names, (key, safe) in ONLY_WITH.items()
                if name.endswith(names) and options.get(key) != safe
            ]
            if {options.get(k, "False") for k in ("trust_remote_code", "allow_pickle")} != {
                "False"
            }:
                found.append(f"{name} trusts what it reads")
        found += [module for module in modules if module.partition(".")[0] in LOADERS]
        lines += [f"line {node.lineno}: {one}" for one in found]
    return lines


def test_nothing_unpickles_or_evaluates():
    dangerous = {
        str(path): lines
        for path in FILES
        if (lines := dangers((ROOT / path).read_text(encoding="utf-8")))
    }
    # Messages between a process and the workers that it started itself, through a pipe
    # without a name: what could write there could change that process anyway.
    (own,) = dangerous.pop("fedapps/engines/shared_memory.py")
    assert own.endswith(": pickle")
    assert dangerous == {}
    assert len(FILES) > 80


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "def f():\n    import joblib",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "datasets.load_dataset(name, trust_remote_code=True)",
        "pd.read_pickle(path)",
    ],
)
def test_dangerous_calls_are_detected(source):
    assert len(dangers(source)) >= 1


#: Four clients of few samples.
SMALL = {"num-clients": 4, "train.local-epochs": 1, "data.max-samples": 120}


class Unpickled(BaseException):
    """Not an Exception, so that no handler catches it."""


@pytest.fixture
def no_pickle(monkeypatch):
    """Make every function that unpickles raise."""

    def refuse(*_, **__):
        raise Unpickled

    for module in (pickle, _pickle):
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(pickle, "_Unpickler", refuse)


@pytest.mark.slow
def test_a_run_its_checkpoint_and_its_stores_are_read_without_pickle(
    tmp_path, monkeypatch, no_pickle
):
    """Four rounds, then a resume that reads the checkpoint and the clients' personal
    models.
    """
    with pytest.raises(Unpickled):
        np.load(io.BytesIO(b"\x80\x04]\x94K\x01a."), allow_pickle=True)  # so the guard bites
    job = {"method": "superfed-mm", "superfed.start": 0, "num-rounds": 4, "checkpoint-every": 2}
    run_inline(tmp_path / "r", **SMALL, **job, **{"clients-per-round": 0})
    # as if it had ended after round 3
    (tmp_path / "r" / "checkpoint" / "4").rename(tmp_path / "r" / "checkpoint" / "3")
    assert run_inline(tmp_path / "r", "--resume")["failures"] == 0


# --- who may read ---------------------------------------------------------------------


def test_a_results_folder_is_its_owners(tmp_path):
    """Other users cannot enter the folder, so they can read nothing in it, whatever the
    modes of the files. The mode of an existing folder does not change.
    """
    old = os.umask(0o022)
    try:
        (tmp_path / "shared").mkdir(mode=0o755)
        for name in ("own", "shared"):
            job = {"method": "superfed-mm", "num-rounds": 2, "checkpoint-every": 1}
            run_inline(tmp_path / name, **SMALL, **job)
    finally:
        os.umask(old)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
    stores = list((tmp_path / "shared" / "clients").iterdir())
    assert stores
    # every folder of personal models is closed
    assert {store.stat().st_mode & 0o777 for store in stores} == {0o700}


# --- what is logged -------------------------------------------------------------------

SECRET = 918273.645546  # of the first row; every further row has one more


def table(path, spoil=""):
    """Write a table of two sites in which one feature of every row is the secret, or
    the text ``spoil``; return the words of a run on it.
    """
    rng = np.random.default_rng(0)
    rows = [
        (f"site-{i % 2}", int(rng.integers(2)), round(rng.normal(), 3), SECRET + i)
        for i in range(80)
    ]
    rows[50] = (*rows[50][:3], spoil or rows[50][3])
    path.mkdir()
    with (path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("client", "label", "age", "income"), *rows])
    return ["run", "--engine", "inline", "task=tabular", f"data.source={path}", "--nodes", "2"]


def everything(folder, captured):
    texts = [
        path.read_bytes().decode("latin-1")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".safetensors"
    ]
    return "\n".join([*texts, captured.out, captured.err])


@pytest.mark.slow
def test_no_log_and_no_result_holds_a_sample(tmp_path, capfd, monkeypatch):
    """Even if clients fail while they use their data: their error messages go to the
    server.
    """
    job = [*table(tmp_path / "data"), "num-rounds=3", "clients-per-round=2"]
    assert main([*job, "--out", str(tmp_path / "r")]) == 0
    train = FedAvgClient.train

    def fails(self, config):
        if config["server-round"] == 2:
            raise RuntimeError("no training data on this site")
        return train(self, config)

    monkeypatch.setattr(FedAvgClient, "train", fails)
    assert main([*job, "--out", str(tmp_path / "failing")]) == 0
    captured = capfd.readouterr()
    for name in ("r", "failing"):
        said = everything(tmp_path / name, captured)
        assert not re.search(r"918[23]\d\d\.6", said)
        assert "num-rounds" in said
    assert "no training data on this site" in said


def test_an_unreadable_value_is_not_printed(tmp_path, capfd):
    """A name in a column of numbers: the message names the column, not the value."""
    job = table(tmp_path / "data", spoil="Zaphod Beeblebrox")
    assert main([*job, "num-rounds=1", "--out", str(tmp_path / "r")]) == 2
    said = everything(tmp_path / "r", capfd.readouterr())
    assert "column 'income': 1 of 80 rows hold text where the others hold numbers" in said
    assert not re.search(r"918[23]\d\d\.6|Zaphod", said)
