"""`fedapps adapt`: a site trains an exported model on its own folder, without the run
and its data.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

from fedapps.commands.parser import main
from fedapps.models.image_nets import build_model
from fedapps.runs.model_files import SETTINGS, read_model
from tests.helpers import lacking

DIGITS = load_digits()
PARTS = ("train", "validation", "test")


def site(folder, classes, share=slice(0, None), size=8, name="train.npz"):
    """Write a folder of digits of some classes, as a site would; pixels are from 0 to
    1, as in the federation.
    """
    rows = np.flatnonzero(np.isin(DIGITS.target, classes))[share]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (DIGITS.images[rows] / 16).astype(np.float32)[:, None, :size, :size]
    np.savez(folder / name, image=pixels, label=DIGITS.target[rows])
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the exported global model of a run on digits."""
    folder = tmp_path_factory.mktemp("run") / "r"
    job = [
        "num-rounds=6",
        "num-clients=5",
        "clients-per-round=0",
        "data.partition=iid",
        "train.local-epochs=1",
        "checkpoint-every=0",
    ]
    assert main(["run", "--engine", "inline", *job, "--out", str(folder)]) == 0
    assert main(["export", str(folder)]) == 0
    return folder / "global.safetensors"


def adapted(*arguments):
    """Run the command and return its exit status."""
    return main(["adapt", *map(str, arguments)])


def loss_of(path, x, y):
    net = build_model("mlp", (1, 8, 8), 10, 1)
    net.load_state_dict(load_file(path))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(net.eval()(x), y))


def test_a_site_with_two_classes_gains_and_the_file_holds_the_scored_model(
    model, tmp_path, capsys, error_of
):
    data, out = site(tmp_path / "mine", [3, 8]), tmp_path / "mine.safetensors"
    out.write_text("precious")
    assert "add --overwrite" in error_of("adapt", model, "--data", data, "--out", out)
    assert out.read_text() == "precious"
    assert adapted(model, "--data", data, "--out", out, "--epochs", 4, "--overwrite") == 0
    printed = capsys.readouterr().out
    with safe_open(out, "pt") as file:
        facts = file.metadata()
    assert facts["method"] == "fedavg"
    assert 1 <= int(facts["adapted-epochs"]) <= 4
    accuracy = f"accuracy {100 * float(facts['accuracy']):.1f} %"
    assert lacking(printed, "before: loss", "kept:   epoch", accuracy) == []
    with np.load(data / "train.npz") as file:
        x, y = map(torch.from_numpy, (file["image"], file["label"]))
    assert loss_of(out, x, y) < 0.7 * loss_of(model, x, y)
    assert adapted(out, "--data", data, "--epochs", 1, "--out", tmp_path / "again.safetensors") == 0


@pytest.mark.parametrize("rate", ["1", "1e4"])  # a larger loss, and NaN
def test_if_every_epoch_is_worse_the_original_model_is_kept(rate, model, tmp_path, capsys):
    data, out = site(tmp_path / "all", range(10)), tmp_path / "wild.safetensors"
    assert adapted(model, "--data", data, "--out", out, "--rate", rate, "--epochs", 2) == 0
    assert "kept:   the original model" in capsys.readouterr().out
    before, after = load_file(model), load_file(out)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_validation_samples_choose_the_epoch_and_test_samples_score_it(model, tmp_path):
    """The test trains the same model by hand. Training, validation and test samples
    would each choose a different epoch, and so would the accuracy.
    """
    from fedapps.clients import FedAvgClient
    from fedapps.commands.adapt import SITE, adapt
    from fedapps.tasks.registry import make_task

    arrays, _, settings, _ = read_model(model)
    settings = replace(
        settings, train=replace(settings.train, learning_rate=0.05, lr_decay=1.0, compile="off")
    )
    folder, epochs = site(tmp_path / "few", [3, 8, 9], slice(300, 400)), 12
    with np.load(folder / "train.npz") as file:
        image, label = file["image"], file["label"]
    rng = np.random.default_rng(1)
    wrong = rng.random(len(label)) < 0.3  # wrong labels, so that long training overfits
    label[wrong] = rng.permutation(label[wrong])
    np.savez(folder / "train.npz", image=image, label=label)
    result = adapt(arrays, settings, folder, epochs, "m")
    task = make_task(settings.task, settings.problem, settings.context, str(folder.absolute()))
    data = task.client_data(SITE, 1)
    client = FedAvgClient(
        task.model_fn, data, SITE, model=task.work_model(), objective=task.objective
    )
    client.model.load_state_dict(arrays)
    path, config = [], {"seed": settings.seed, **settings.train.to_config(), "local-epochs": 1}
    for epoch in range(epochs + 1):
        if epoch:
            client.train({**config, "server-round": epoch})
        path.append({part: client.score(getattr(data, part)) for part in PARTS})
    best = {part: min(range(epochs + 1), key=lambda e: path[e][part]["loss"]) for part in PARTS}
    likely = max(range(epochs + 1), key=lambda e: path[e]["validation"]["accuracy"])
    assert best["validation"] not in (best["train"], best["test"], likely, 0, epochs)
    losses = [scores["validation"]["loss"] for scores in path]
    better = [epoch for epoch, loss in enumerate(losses) if loss < losses[0]]
    assert better[0] < best["validation"] < better[-1]
    assert (result.epoch, result.before) == (best["validation"], path[0]["test"])
    assert result.after == path[result.epoch]["test"]
    client.model.load_state_dict(result.arrays)
    assert client.score(data.test) == result.after


def test_errors_about_model_and_data_are_one_line(model, tmp_path, error_of):
    data, small = site(tmp_path / "mine", [1, 2]), site(tmp_path / "small", [1, 2], size=6)
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    x, y = np.zeros((20, 1, 8, 8), np.float32), np.array(["cat", "dog"] * 10)
    np.savez(tmp_path / "other" / "train.npz", image=x, label=y)
    (tmp_path / "text.safetensors").write_text("no tensors")
    for arguments, message in (
        ([tmp_path / "no.safetensors", "--data", data], "no such file"),
        ([model, "--data", tmp_path / "nowhere"], "no such folder"),
        ([model, "--data", tmp_path / "empty"], "empty"),
        ([model, "--data", small], "images are 1,6,6, but sites.shape = '1,8,8'"),
        ([model, "--data", tmp_path / "other"], "label 'cat' is none of"),
        ([model, "--data", data, "--epochs", "0"], "--epochs 0: must be at least 1"),
        ([model, "--data", data, "--rate", "-1"], "--rate"),
        ([model, "--data", data, "--validation", "0.9"], "--validation 0.9"),
        ([tmp_path / "text.safetensors", "--data", data], "is not a safetensors file"),
    ):
        assert message in error_of("adapt", *arguments)


def test_files_of_other_nets_and_hostile_ones_are_refused(model, tmp_path, error_of):
    data, arrays = site(tmp_path / "mine", [1, 2]), load_file(model)
    with safe_open(model, "pt") as file:
        metadata = file.metadata()

    made, out = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    name, own = next(iter(arrays)), json.loads(metadata[SETTINGS])
    for given, message in (
        ({"method": "fedavg"}, "does not name its net"),
        ({SETTINGS: "{"}, "cannot read the description of its net"),
        ({SETTINGS: "[1]"}, "does not describe its input samples"),
        (
            {SETTINGS: json.dumps({**own, "model.name": "nonsense", "seed": "x"})},
            "cannot read the description of its net",
        ),
        (
            {SETTINGS: json.dumps({**own, "model.name": "os:system"})},
            "if you trust it, run it with --net os:system",
        ),
        ({name: torch.zeros(3)}, f"array {name!r}"),
        ({"other": torch.zeros(3)}, "array 'other'"),
    ):
        tensors = {k: v for k, v in given.items() if isinstance(v, torch.Tensor)}
        save_file({**arrays, **tensors}, made, metadata if tensors else given)
        assert message in error_of("adapt", made, "--data", data, "--out", out)
    assert not out.exists()
    save_file(arrays, made, {SETTINGS: json.dumps({**own, "out": "/x", "dp.delta": 1})})
    assert read_model(made)[2].out == ""


def test_a_table_is_adapted_where_the_run_described_the_sites_columns(tmp_path):
    """The sites had their own tables; only the description of their columns is
    available here.
    """
    from fedapps.runs.assembly import build_task
    from fedapps.runs.model_files import described
    from fedapps.runs.prepare import with_defaults

    given = {"task": "tabular", "sites.columns": "age,kind=a|b", "data.label": "sick"}
    settings = with_defaults({**given, "num-clients": 2})
    task = build_task(settings)
    arrays = {name: torch.from_numpy(array.copy()) for name, array in task.initial_arrays().items()}
    save_file(arrays, tmp_path / "m.safetensors", described(settings, task))
    rng = np.random.default_rng(0)
    rows = [f"{age},{'ab'[age % 2]},{int(age > 50)}" for age in rng.integers(20, 80, 80)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,kind,sick", *rows]) + "\n")
    out = tmp_path / "out.safetensors"
    assert adapted(tmp_path / "m.safetensors", "--data", tmp_path / "rows.csv", "--out", out) == 0
    with safe_open(out, "pt") as file:
        assert float(file.metadata()["accuracy"]) > 0.8


def test_a_site_adapts_the_model_of_a_csv_with_the_runs_input_scale(
    tmp_path, monkeypatch, capsys, error_of
):
    """Inputs of the run were scaled by the sums over all clients. The site's file has
    another scale, and columns that the net does not take.
    """
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = [
        f"{ward},{100 + shift + 6 * y + draw.normal()},{5 + draw.normal()},{y}"
        for ward, shift in (("bern", 0), ("graz", 1))
        for y in draw.integers(2, size=60)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["ward,glucose,age,outcome", *rows]))
    own = ["ward,glucose,age,outcome,weight", *(f"{row},70.0" for row in rows[:60])]
    (tmp_path / "bern.csv").write_text("\n".join(own))
    job = ["data.source=visits.csv", "data.natural-id=ward", "data.partition=natural"]
    job += ["data.label=outcome", "num-rounds=6", "evaluate-every=6", "train.local-epochs=3"]
    assert main(["run", "--engine", "inline", *job, "--out", "r"]) == 0
    assert main(["export", "r"]) == 0
    capsys.readouterr()
    assert adapted("r/global.safetensors", "--data", "bern.csv", "--epochs", 2) == 0
    before = next(line for line in capsys.readouterr().out.splitlines() if "before" in line)
    assert float(before.split("accuracy ")[1].split(" %")[0]) > 90
    assert adapted("r/global-adapted.safetensors", "--data", "bern.csv") == 0
    arrays, metadata, _, scale = read_model(tmp_path / "r" / "global.safetensors")
    assert scale.mean.reshape(-1)[0] == pytest.approx(105, abs=3)
    del metadata["mean"]
    save_file(arrays, tmp_path / "bare.safetensors", metadata)
    said = error_of("adapt", "bare.safetensors", "--data", "bern.csv")
    assert "mean of the inputs is missing" in said
