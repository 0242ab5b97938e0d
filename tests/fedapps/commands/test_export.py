"""`fedapps export`: for every method, the exported model in a plain PyTorch net has the
accuracy that the run reported.
"""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.lab.api import load
from fedapps.methods import METHODS
from fedapps.runs.assembly import build_task
from fedapps.runs.models import exported, settings_in
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
        assert {name: known[name] for name in ("accuracy", "lambda")} == pytest.approx(
            {name: float(row[name]) for name in ("accuracy", "lambda")}
        )
    if choice == "shared":
        assert len({row["lambda"] for row in rows}) == 1


#: Methods on a torch net whose global model is of no use without a client's part.
NO_GLOBAL = {"local", "fedper", "lg-fedavg", "fedrep", "partial", "ifca"}
NO_GLOBAL |= {"fedproto", "fedtgp", "fedmd"}


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
