"""``train.precision`` and ``data.augment`` in a run: where they act, and one line where
they cannot.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from fedapps.algorithms.common import precision
from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.runs.assembly import check_steps, client_factory
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.runs.work import with_compilation
from fedapps.settings.settings import Settings
from fedapps.tasks.base import TorchTask
from fedapps.testing.problems import Blobs
from tests.helpers import dying_after, outcome_of, run_inline

SMALL = {"num-clients": 6, "num-rounds": 1, "clients-per-round": 3, "checkpoint-every": 0}
BF16, AUGMENT = {"train.precision": "bf16"}, {"data.augment": "crop-flip"}
JOB = {
    "num-clients": 4,
    "clients-per-round": 2,
    "num-rounds": 4,
    "checkpoint-every": 2,
    "data.max-samples": 200,
    "data.partition": "iid",
    "train.local-epochs": 1,
}


def prepared(**given):
    return assemble(with_defaults({**SMALL, **given}))


@pytest.mark.parametrize(
    "given",
    [
        {"method": "ffgb"},
        {"method": "fedevg"},
        {"method": "fedcgan"},
        {"method": "feddm"},
        {"method": "histogram-boosting"},
        {"method": "fedboost", "task": "ensemble-classification"},
        {"method": "fedfw", "task": "constrained-classification"},
    ],
)
@pytest.mark.parametrize("setting", [BF16, AUGMENT])
def test_a_method_without_local_steps_on_the_net_refuses_in_one_line(given, setting):
    ((key, value),) = setting.items()
    why = f"{key} = '{value}': method '{given['method']}': its clients take no local steps of SGD"
    with pytest.raises(UserError) as error:
        prepared(**given, **setting)
    assert str(error.value).startswith(why)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("setting", [BF16, AUGMENT])
def test_a_method_of_ones_own_with_any_client_is_named(setting, tmp_path, monkeypatch, caplog):
    """Whether a plain NumPyClient does what is asked, nobody else can know."""
    (tmp_path / "plain_client.py").write_text(
        "from flwr.client import NumPyClient\n"
        "from fedapps.methods.method import Method\n"
        "from fedapps.strategies import FedAvg\n"
        'METHOD = Method("mine", "nobody 2026", "one global model",'
        " lambda o, t, c: FedAvg(), lambda o, t, i, n, store: NumPyClient())\n"
    )
    monkeypatch.chdir(tmp_path)
    ((key, value),) = setting.items()
    prepared(method="plain_client:METHOD", **setting)
    line = f"{key} = '{value}': clients of method 'plain_client:METHOD' must act on it themselves"
    assert caplog.messages.count(line) == 1
    caplog.clear()
    prepared(method="plain_client:METHOD")
    assert not caplog.messages


def test_both_halves_of_a_warm_start_are_asked():
    halves = {"warm-start.first": "fedavg", "warm-start.then": "ffgb-distill"}
    with pytest.raises(UserError, match="method 'ffgb-distill': its clients fit the gradient"):
        prepared(method="warm-start", **halves, **AUGMENT)
    prepared(method="warm-start", **halves, **BF16)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"task": "tabular"}, "is for images, which the samples are not: leave it 'none'"),
        ({"task": "regression"}, "is for images, which the samples are not"),
        ({"task": "text"}, "task 'text' does not use it"),
        ({"method": "fedfw", "task": "lasso"}, "its clients take no|task 'lasso' does not use it"),
        ({"method": "ffgb-distill"}, "method 'ffgb-distill': its clients fit the gradient"),
    ],
)
def test_only_images_are_augmented(given, why):
    with pytest.raises(UserError, match=rf"^data\.augment = 'crop-flip': .*({why})"):
        prepared(**given, **AUGMENT)


def test_a_task_that_does_not_look_at_it_is_refused():
    settings = with_defaults({**SMALL, **AUGMENT})
    with pytest.raises(
        UserError, match=r"^data\.augment = 'crop-flip': task 'digits' does not aug"
    ):
        check_steps(settings, Blobs())
    check_steps(with_defaults(SMALL), Blobs())


def test_a_device_without_bfloat16_is_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    with pytest.raises(UserError, match=r"^train\.precision = 'bf16': the device cpu has no bfl"):
        prepared(**BF16)
    prepared()


def test_a_validation_set_that_is_the_training_set_stays_so():
    task = prepared(**AUGMENT, **{"data.validation": 0.0}).task
    data = task.client_data(0, 6)
    assert data.validation is data.train
    assert (data.train.augment, data.test.augment) == ("crop-flip", "none")
    own = prepared(**AUGMENT, **{"data.validation": 0.2}).task.client_data(0, 6)
    assert (own.train.augment, own.validation.augment) == ("crop-flip", "none")


def test_every_method_with_a_net_says_whether_it_acts():
    """No method with a factory of its own lets the settings pass."""
    for name, method in METHODS.items():
        if method.wrap or method.client is None:
            continue
        kind = getattr(client_factory(Settings(method=name)), "kind", None)
        assert kind is None or hasattr(kind(), "needs_float32")


def test_augmented_runs_do_not_depend_on_workers_and_resume_to_the_same_bits(tmp_path):
    job = {**JOB, **AUGMENT}
    run_inline(tmp_path / "one", **job)
    run_inline(tmp_path / "two", "--workers", "2", **job)
    assert outcome_of(tmp_path / "two") == outcome_of(tmp_path / "one")
    words = [f"{key}={json.dumps(value)}" for key, value in job.items()]
    with dying_after(3):
        assert main(["run", *words, "--engine", "inline", "--out", str(tmp_path / "cut")]) == 130
    assert main(["run", "--resume", "--engine", "inline", "--out", str(tmp_path / "cut")]) == 0
    assert outcome_of(tmp_path / "cut") == outcome_of(tmp_path / "one")
    run_inline(tmp_path / "plain", **JOB)
    assert outcome_of(tmp_path / "plain") != outcome_of(tmp_path / "one")


@pytest.mark.ray
@pytest.mark.slow
def test_ray_draws_the_same_augmentation(tmp_path):
    run_inline(tmp_path / "inline", **JOB, **AUGMENT)
    words = [f"{key}={json.dumps(value)}" for key, value in {**JOB, **AUGMENT}.items()]
    assert main(["run", *words, "--engine", "ray", "--out", str(tmp_path / "ray")]) == 0
    assert outcome_of(tmp_path / "ray") == outcome_of(tmp_path / "inline")


def test_a_run_in_bfloat16_learns_and_its_models_are_float32(tmp_path, capsys):
    job = {**JOB, "method": "ditto", "num-rounds": 2}
    plain, rounded = (
        run_inline(tmp_path / name, **job, **more)
        for name, more in (("plain", {}), ("rounded", BF16))
    )
    assert rounded["loss-mean"] != plain["loss-mean"]
    assert rounded["loss-mean"] == pytest.approx(plain["loss-mean"], rel=0.05)
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "rounded")]
    assert all(array.dtype == np.float32 for array in models[1].values())
    # the export scores the client again, in the run's precision
    out = tmp_path / "own.safetensors"
    words = ["export", str(tmp_path / "rounded"), "--client", "0", "--out", str(out)]
    assert main(words) == 0, capsys.readouterr().err
    assert main([*words[:2], "--out", str(tmp_path / "all.safetensors")]) == 0
    mine, digits = tmp_path / "site.npz", load_digits()
    images = (digits.images[:60] / 16).astype(np.float32)[:, None]
    np.savez(mine, image=images, label=digits.target[:60])
    adapted = tmp_path / "adapted.safetensors"
    words = ["adapt", str(tmp_path / "all.safetensors"), "--data", str(mine), "--epochs", "1"]
    assert main([*words, "--out", str(adapted)]) == 0, capsys.readouterr().err
    assert all(array.dtype == np.float32 for array in load_file(adapted).values())


def test_the_server_distils_in_the_precision_of_the_clients():
    nets = [
        prepared(
            method="fedavg-distill", **more, **{"public.samples": 40}
        ).strategy.distiller.module
        for more in ({}, BF16)
    ]
    assert [isinstance(net, precision.Bfloat16) for net in nets] == [False, True]


def test_steps_in_bfloat16_are_not_compiled_unasked():
    settings = with_defaults({**SMALL, **BF16, "num-rounds": 100_000})
    asked = []
    decided = with_compilation(settings, None, lambda *_: asked.append(1))
    assert (decided.train.compile, asked) == ("off", [])
    forced = replace(settings, train=replace(settings.train, compile="on"))
    assert with_compilation(forced, None, lambda *_: True).train.compile == "on"


def test_a_torch_task_has_no_images_unless_it_says_so():
    assert not TorchTask.has_images.fget(None)
