"""`fedapps export --format onnx`: onnxruntime computes what the net computes, from
samples as the data have them.
"""

import json
from importlib.util import find_spec

import numpy as np
import pytest

from fedapps.commands.parser import main
from fedapps.lab.api import load
from fedapps.runs import onnx_file
from fedapps.runs.onnx_file import PACKAGES

MISSING = [name for name in PACKAGES if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a method on a csv of two sites."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    rows = [
        f"{ward},{100 + 6 * y + draw.normal()},{draw.normal()},{'abc'[draw.integers(3)]},{y}"
        for ward in ("bern", "graz")
        for y in draw.integers(2, size=40)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["ward,glucose,age,kind,outcome", *rows]) + "\n")

    def run(*settings):
        job = ["data.source=visits.csv", "data.natural-id=ward", "data.label=outcome"]
        job += ["num-rounds=2", "device=cpu"]
        return main(["run", "--engine", "inline", *job, *settings, "--overwrite", "--out", "r"])

    return run


def test_without_the_packages_one_line_says_how_to_install_them(run, capsys, monkeypatch):
    assert run("method=ditto") == 0
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    capsys.readouterr()
    assert main(["export", "r", "--format", "onnx"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pip install 'fedapps[onnx]'" in error


@needs_onnx
@pytest.mark.parametrize("scaling", ["sums", "client"])
@pytest.mark.parametrize("task", ["classification", "tabular", "regression"])
def test_the_file_takes_raw_samples(task, scaling, run, tmp_path):
    """With missing values, one beyond ``data.clip``, and categories as features."""
    import onnxruntime
    import torch

    more = ["regression.center=0.5", "regression.scale=2"] if task == "regression" else []
    assert run("method=ditto", f"task={task}", f"data.standardise={scaling}", *more) == 0
    assert main(["export", "r", "--client", "graz", "--format", "onnx"]) == 0
    session = onnxruntime.InferenceSession("r/client-1.onnx")
    done = load("r")
    features = json.loads(session.get_modelmeta().custom_metadata_map["features"])
    assert features == ["glucose", "age", "kind=a", "kind=b", "kind=c"]
    raw = np.float32(
        [
            [101, 0.2, 1, 0, 0],
            [np.nan, -1, 0, 1, 0],
            [900, np.nan, *[np.nan] * 3],
            [104, 0, 0, 0, 1],
        ]
    )
    shape = session.get_inputs()[0].shape[1:]
    with torch.no_grad():
        scaled = torch.from_numpy(done.scale("graz").of(raw[:, None, None])).reshape(-1, *shape)
        want = done.personal_model("graz")(scaled).numpy()
    want = 0.5 + 2 * want if task == "regression" else want
    found = session.run(None, {"input": raw.reshape(-1, *shape)})[0]
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert len(np.unique(found.round(4), axis=0)) == 4
    status = main(["export", "r", "--format", "onnx"])
    assert status == (2 if scaling == "client" else 0)
    assert (tmp_path / "r" / "global.onnx").exists() == (scaling == "sums")


@needs_onnx
def test_a_file_that_computes_something_else_is_not_kept(run, capsys, monkeypatch, tmp_path):
    assert run("method=fedavg") == 0
    monkeypatch.setattr(onnx_file, "TOLERANCE", -1.0)
    assert main(["export", "r", "--format", "onnx"]) == 2
    assert "other outputs" in capsys.readouterr().err
    assert not list((tmp_path / "r").glob("*.onnx*"))


@needs_onnx
def test_an_image_net(run):
    job = ["run", "--engine", "inline", "num-rounds=1", "num-clients=3", "train.local-epochs=1"]
    assert main([*job, "model.name=small-cnn", "--out", "i"]) == 0
    assert main(["export", "i", "--format", "onnx", "--out", "cnn.onnx"]) == 0
