"""`fedapps export`: for every method, the exported model in a plain PyTorch net has the
accuracy that the run reported. With `--format onnx`, onnxruntime computes what the net
computes, from samples as the data have them.
"""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.lab.api import load
from fedapps.methods import METHODS
from fedapps.runs import onnx_file
from fedapps.runs.assembly import build_task
from fedapps.runs.models import exported, settings_in
from fedapps.runs.onnx_file import PACKAGES
from tests.helpers import clients_of, lacking, refused, summary_of

PERSONAL = [name for name, method in METHODS.items() if method.trait == "personalises"]
JOB = [
    "num-rounds=3",
    "num-clients=4",
    "clients-per-round=2",
    "data.partition=dirichlet",
    "data.alpha=0.5",
    "train.local-epochs=1",
    "checkpoint-every=2",
    "evaluate-every=2",
]


def run(folder, *settings):
    more = ["superfed.start=0.3"] if "method=superfed" in settings[0] else []
    return main(["run", "--engine", "inline", *JOB, *more, *settings, "--out", str(folder)])


def reported(folder):
    return {int(row["client"]): float(row["accuracy"]) for row in clients_of(folder)}


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["shared", "shrunk"])
def test_superfeds_exported_lambda_is_that_of_the_run_even_if_pooled_curves_chose_it(
    choice, tmp_path
):
    """The export has one client's curve only. Clients that mixing did not reach train
    first.
    """
    folder = tmp_path / "r"
    more = [f"superfed.lambda-choice={choice}", "superfed.catch-up=1", "superfed.init=global"]
    assert run(folder, "method=superfed-mm", *more) == 0
    rows = clients_of(folder)
    assert len(rows) == 4
    for row in rows:
        _, known, _ = exported(folder, int(row["client"]))
        assert known["accuracy"] == pytest.approx(float(row["accuracy"]))
        assert known["lambda"] == pytest.approx(float(row["lambda"]))
    if choice == "shared":
        assert len({row["lambda"] for row in rows}) == 1


#: Methods on a torch net whose global model is of no use without a client's part.
NO_GLOBAL = {"local", "fedper", "lg-fedavg", "fedrep", "partial", "ifca"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", *PERSONAL])
def test_files_have_the_reported_accuracy_in_plain_pytorch(method, tmp_path, capsys):
    """Covers clients that took part and clients that did not. SuperFed has mixed,
    FedRoD has two heads, fine-tuning trains before use. A global model that is no model
    is not written.
    """
    folder = tmp_path / "r"
    # This net has no normalisation layer, so that fedbn averages all of it.
    more = ["partial.keep=*bias"] if method == "partial" else []
    assert run(folder, f"method={method}", *more) == 0
    task = build_task(settings_in(folder))
    for client, reported_accuracy in reported(folder).items():
        out = tmp_path / f"{client}.safetensors"
        assert main(["export", str(folder), "--client", str(client), "--out", str(out)]) == 0
        net = task.model_fn(1)
        net.load_state_dict(load_file(out))
        data = task.client_data(client, 4).test
        found = float((net.eval()(data.x).argmax(1) == data.y).float().mean())
        assert found == pytest.approx(reported_accuracy, abs=1e-6), client
        with safe_open(out, "pt") as file:
            known = file.metadata()
        assert (known["method"], int(known["client"]), int(known["round"])) == (method, client, 3)
        assert float(known["accuracy"]) == pytest.approx(reported_accuracy)
        assert ("lambda" in known, "apfl-alpha" in known) == (
            method.startswith("superfed"),
            method == "apfl",
        )
    assert f"accuracy {100 * float(known['accuracy']):.1f} %," in capsys.readouterr().out

    status = main(["export", str(folder)])
    out, error = capsys.readouterr()
    assert (folder / "global.safetensors").exists() == (method not in NO_GLOBAL)
    if method in NO_GLOBAL:
        assert (status, error.count("\n")) == (2, 1)
        assert lacking(error, "has no global model", "--client") == []
        refused(lambda: load(folder).model(), r"personal_model\(client\)", UserError)
        return
    assert status == 0
    ours, own = (summary_of(folder).get(f"{kind}accuracy-mean") for kind in ("global-", ""))
    if ours is not None:  # fedbn has none
        assert f"global accuracy {100 * ours:.1f} %" in out
        assert (f"accuracy {100 * own:.1f} %: --client NAME exports" in out) == (ours != own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrapped", "status"),
    [
        (["method=propfair", "propfair.base=finetune"], 0),
        (["method=ditto", "robust.rule=median"], 0),
        (["method=fedper", "robust.rule=median"], 2),
        (["method=propfair", "propfair.base=fedper"], 2),
    ],
)
def test_a_method_around_another_one_is_exported_like_it(wrapped, status, tmp_path, capsys):
    folder = tmp_path / "r"
    assert run(folder, *wrapped) == 0
    for client, reported_accuracy in reported(folder).items():
        assert exported(folder, client)[1]["accuracy"] == pytest.approx(reported_accuracy)
    capsys.readouterr()
    assert main(["export", str(folder)]) == status
    assert ("has no global model" in capsys.readouterr().err) == (status == 2)
    if "method=ditto" in wrapped:  # the program computes the same
        program = tmp_path / "client.pt2"
        assert main(["export", str(folder), "--client", "2", "--program", str(program)]) == 0
        client, _, tensors = exported(folder, 2)
        client.model.load_state_dict(tensors)
        x = client.data.test.x
        torch.testing.assert_close(torch.export.load(program).module()(x), client.model.eval()(x))


def test_models_that_were_not_saved_or_are_of_another_run_are_refused(tmp_path, error_of):
    assert "holds no finished run" in error_of("export", tmp_path, "--client", 1)
    assert run(tmp_path / "a", "method=local", "client-store=message", "checkpoint-every=0") == 0
    for client, said in (
        (1, "its personal model was not saved"),
        (77, "has no scores of this client: choose one of 0, 1, 2, 3"),
    ):
        assert said in error_of("export", tmp_path / "a", "--client", client)
    boost = ["run", "--engine", "inline", "method=fedboost", "num-rounds=1"]
    assert main([*boost, "--out", str(tmp_path / "b")]) == 0
    assert "method = 'fedboost'" in error_of("export", tmp_path / "b", "--client", 1)
    assert summary_of(tmp_path / "b")["status"] == "completed"


# --- onnx -----------------------------------------------------------------------------

MISSING = [name for name in PACKAGES if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture
def run_table(tmp_path, monkeypatch):
    """Return a function that runs a method on a csv of two sites."""
    monkeypatch.chdir(tmp_path)
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


def test_without_the_packages_one_line_says_how_to_install_them(error_of, monkeypatch):
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    assert "pip install 'fedapps[onnx]'" in error_of("export", "r", "--format", "onnx")


@needs_onnx
@pytest.mark.parametrize("scaling", ["sums", "client"])
@pytest.mark.parametrize("task", ["classification", "tabular", "regression"])
def test_the_file_takes_raw_samples(task, scaling, run_table, tmp_path):
    """With missing values, one beyond ``data.clip``, and categories as features."""
    import onnxruntime

    more = ["regression.center=0.5", "regression.scale=2"] if task == "regression" else []
    assert run_table("method=ditto", f"task={task}", f"data.standardise={scaling}", *more) == 0
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
    assert main(["export", "r", "--format", "onnx"]) == (2 if scaling == "client" else 0)
    assert (tmp_path / "r" / "global.onnx").exists() == (scaling == "sums")


@needs_onnx
def test_a_file_that_computes_something_else_is_not_kept(
    run_table, error_of, monkeypatch, tmp_path
):
    assert run_table("method=fedavg") == 0
    monkeypatch.setattr(onnx_file, "TOLERANCE", -1.0)
    assert "other outputs" in error_of("export", "r", "--format", "onnx")
    assert not list((tmp_path / "r").glob("*.onnx*"))


@needs_onnx
def test_an_image_net_becomes_onnx(tmp_path):
    assert run(tmp_path / "i", "method=fedavg", "model.name=small-cnn", "num-rounds=1") == 0
    out = str(tmp_path / "cnn.onnx")
    assert main(["export", str(tmp_path / "i"), "--format", "onnx", "--out", out]) == 0
