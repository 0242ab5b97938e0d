"""One decision on the device of a run, from the job and what was asked for."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fedapps import server_app
from fedapps.commands.parser import main
from fedapps.engines import flower
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.lab.sweeps.execution import missing_runs
from fedapps.lab.sweeps.grid import grid_of
from fedapps.lab.sweeps.plan import plan_of
from fedapps.methods import METHODS
from fedapps.runs import client_app, client_factory, devices
from fedapps.runs.devices import Asked, for_server
from fedapps.runs.execution import execute
from fedapps.runs.launch import Launch
from fedapps.runs.models import settings_in
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.runs.work import worth
from fedapps.strategies.base.rounds import TooFewReplies
from fedapps.toml_text import read_toml
from tests.helpers import refused, rounds_of, write_file
from tests.pretended_device import pretended_cuda

SMALL = {
    "method": "fedavg",
    "num-clients": 3,
    "clients-per-round": 1,
    "num-rounds": 2,
    "checkpoint-every": 0,
    "data.max-samples": 80,
    "data.partition": "iid",
    "train.local-epochs": 1,
}
#: A step of 118 MFLOP: clients have fewer samples than a batch.
LARGE = {
    **SMALL,
    "model.name": "two-cnn",
    "clients-per-round": 1,
    "train.batch-size": 512,
    "data.max-samples": 300,
}


@pytest.fixture
def gpus(monkeypatch):
    """Let there be a GPU; return a function that sets their number."""

    def visible(number):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)

    visible(1)
    return visible


def words(job):
    return [f"{key}={value}" for key, value in job.items()]


def chosen(job, **asked):
    """Return the device of a run that is asked for in this way."""
    return assemble(with_defaults(job), Asked(**asked)).settings.device


# --- where a GPU pays -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "number", "said"),
    [
        (
            SMALL,
            1,
            "device cpu: a step of 0.28 MFLOP is too small for a GPU; device=cuda forces it",
        ),
        (LARGE, 0, ""),
        ({"method": "fedevg", "num-clients": 4}, 1, ""),
        ({"method": "histogram-boosting", "num-clients": 4}, 1, ""),
    ],
)
def test_auto_is_the_cpu_and_one_line_says_why_a_gpu_does_not_pay(job, number, said, gpus, caplog):
    gpus(number)
    assert chosen(job) == "cpu"
    assert [line for line in caplog.messages if line.startswith("device")] == [said] * bool(said)


def test_a_large_step_takes_the_gpu_and_gives_the_numbers_of_the_cpu(tmp_path, monkeypatch, caplog):
    run = ["run", *words(LARGE), "--out"]
    assert main([*run, str(tmp_path / "cpu"), "device=cpu"]) == 0
    client_factory.RUNS.clear()
    caplog.clear()
    with pretended_cuda(monkeypatch):
        assert main([*run, str(tmp_path / "gpu")]) == 0
        ((_, task),) = client_factory.RUNS.values()
        assert task.client_data(0, 3).train.x.device.type == "cuda"
    assert "device cuda: a step of 118 MFLOP pays on a GPU; device=cpu leaves it out" in caplog.text
    assert read_toml(tmp_path / "gpu" / "settings.toml")["device"] == "cuda"
    for name in ("model.safetensors", "clients.csv"):
        one, other = (tmp_path / folder / name for folder in ("cpu", "gpu"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("cores", "sampled", "device"), [(1, 3, "cuda"), (64, 3, "cpu"), (64, 1, "cuda")]
)
def test_a_gpu_has_to_beat_all_cores_that_would_train(cores, sampled, device, gpus, monkeypatch):
    """Five layers on a GPU take as long as 75 MFLOP on a core."""
    monkeypatch.setattr(devices, "cores", lambda: cores)
    assert chosen(LARGE | {"clients-per-round": sampled}) == device


def test_a_run_on_a_gpu_takes_kernels_that_give_the_same_numbers_again(tmp_path, monkeypatch):
    """Also the server half alone, which may train."""
    monkeypatch.setattr(client_factory, "repeatable", lambda device: None)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pretended_cuda(monkeypatch):
        assert main(["run", *words(SMALL), "--out", str(tmp_path / "cpu"), "device=cpu"]) == 0
        assert not torch.are_deterministic_algorithms_enabled()
        assert main(["run", *words(SMALL), "--out", str(tmp_path / "gpu"), "device=cuda"]) == 0
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.allow_tf32
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_clients_in_another_process_take_such_kernels_too(monkeypatch):
    with pretended_cuda(monkeypatch):
        client_factory.prepare(frozenset(with_defaults(SMALL | {"device": "cuda"}).flat().items()))
        assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("source", ["regression", "digits"])
def test_the_size_of_a_step_is_known_where_the_data_say_how_many_clients(gpus, source, tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows, y=rows.sum(1), who=np.arange(60) % 4)
    data = {"data.source": str(tmp_path / "rows.npz"), "data.natural-id": "who"}
    job = {"task": source, "num-clients": 0, **(data if source == "regression" else {})}
    assert chosen(job | {"method": "fedavg"}) == "cpu"


def test_auto_leaves_an_accelerator_without_float64(gpus, monkeypatch, caplog):
    gpus(0)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert chosen(LARGE) == "cpu"
    assert caplog.messages == [
        "device cpu: auto takes CUDA only; device=mps takes this machine's mps"
    ]


# --- the same device in every engine --------------------------------------------------


@pytest.mark.parametrize(
    ("device", "asked", "found"),
    [
        ("auto", {"gpus_per_client": 0.5, "engine": "ray"}, "cuda"),
        ("cuda", {"gpus_per_client": 0.5, "engine": "ray"}, "cuda"),
        ("auto", {"engine": "ray"}, "device cpu: with Ray, clients get a GPU by --gpus-per-client"),
        ("auto", {"engine": "deployment"}, "device cpu: device=cuda asks every site for a GPU"),
        ("cuda", {"engine": "deployment"}, "cuda"),
        ("auto", {"workers": 2}, "device cpu: --workers 2 are processes on the CPU; device=cuda"),
        ("cuda", {}, "cuda"),
    ],
)
def test_what_was_asked_for_decides(device, asked, found, gpus, caplog):
    assert chosen(LARGE | {"device": device}, **asked) == found.partition(" ")[0].replace(
        "device", "cpu"
    )
    assert [message[: len(found)] for message in caplog.messages] == [found] * (" " in found)


DISTILLED = SMALL | {"method": "fedavg-distill", "public.samples": 40}


def task_at_a_site(own):
    config = {**with_defaults(SMALL).flat(), "device": "auto"}
    return client_factory.task_of(Context(1, 1, own, RecordDict(), config))[1]


@pytest.mark.parametrize(
    ("visible", "call", "error"),
    [
        *(
            (
                2,
                lambda _, device=device, asked=asked: chosen(SMALL | {"device": device}, **asked),
                f"^device = {re.escape(error)}",
            )
            for device, asked, error in [
                ("mps", {}, "'mps', but 0 devices of kind mps are visible here: choose 'cpu'"),
                ("xpu:1", {}, "'xpu:1', but 0 devices of kind xpu are visible here: choose 'cpu'"),
                (
                    "cuda:2",
                    {},
                    "'cuda:2', but 2 devices of kind cuda are visible here: choose cuda:0 to ",
                ),
                (
                    "cuda:1",
                    {"gpus_per_client": 1.0, "engine": "ray"},
                    "'cuda:1': Ray deals the GPUs to ",
                ),
                (
                    "cuda",
                    {"engine": "ray"},
                    "'cuda': with Ray, clients see a GPU only with --gpus-per-",
                ),
                (
                    "cpu",
                    {"gpus_per_client": 0.5, "engine": "ray"},
                    "'cpu', but --gpus-per-client 0.5: ",
                ),
                *(
                    (name, {}, f"'{name}': choose one of auto, cpu, cuda, mps, xpu")
                    for name in ("gpu", "cuda:", "cuda:x", "cuda:01", "cpu:0", "mps:0", "auto:1")
                ),
            ]
        ),
        # the server half trains, too
        (
            0,
            lambda _: chosen(DISTILLED, engine="ray", gpus_per_client=0.5),
            "'fedavg-distill' trains on the server, too, and this ",
        ),
        # a site may choose its own device
        (2, lambda _: task_at_a_site({"device": "gpu"}), "device = 'gpu': choose one of auto, cpu"),
        # a sweep deals the GPUs itself
        (
            2,
            lambda tmp_path: missing_runs(
                plan_of(grid_of("s", LARGE | {"device": "cuda:1"}, {}), tmp_path)
            ),
            "choose cuda, and CUDA_VISIBLE_DEVICES=1 for this one",
        ),
    ],
)
def test_a_device_that_nobody_can_have_is_refused_in_one_line(visible, call, error, gpus, tmp_path):
    gpus(visible)
    refused(lambda: call(tmp_path), error, UserError)


# --- the server half ------------------------------------------------------------------


def test_the_server_half_is_on_the_cpu_unless_it_trains():
    trains = {
        name
        for name, method in METHODS.items()
        if not method.wrap
        and name != "warm-start"
        and for_server(with_defaults({"method": name, "device": "cuda"})).device == "cuda"
    }
    assert trains == {
        *("fedevg", "feddm", "class-means", "fedcgan", "fedcvae", "ffgb-distill", "fedavg-distill")
    }
    given = {"data.synthetic": "set.npz", "device": "cuda"}
    assert [
        for_server(with_defaults(given | {"data.synthetic-use": use})).device
        for use in ("mix", "pretrain")
    ] == ["cpu", "cuda"]


def test_a_share_of_a_gpu_needs_none_on_the_head(gpus, tmp_path):
    """As on a cluster whose other machines have them; here, clients have none."""
    gpus(0)
    job = SMALL | {"out": str(tmp_path), "max-failed-rounds": 1}
    settings = assemble(with_defaults(job), Asked("ray", gpus_per_client=0.5)).settings
    assert settings.device == "cuda"
    refused(
        lambda: execute(settings, InlineGrid(client_app.app, 3, settings.flat())),
        "no GPU is visible here",
        TooFewReplies,
    )
    (row,) = rounds_of(tmp_path)
    assert row["failures"]


def test_a_server_half_that_trains_may_have_a_gpu_on_the_head(gpus):
    assert chosen(DISTILLED, engine="ray", gpus_per_client=0.5) == "cuda"


@pytest.mark.parametrize("simulation", [False, True])
def test_a_run_that_flower_starts_is_on_the_cpu_in_all_its_processes(
    simulation, tmp_path, gpus, monkeypatch
):
    """Server and clients read "auto"; here, both see a GPU that is not there."""
    config = {**with_defaults(LARGE | {"out": str(tmp_path / "run")}).flat(), "device": "auto"}
    monkeypatch.setattr(server_app, "is_simulation", lambda grid: simulation)
    client_factory.RUNS.clear()
    server_app.main(InlineGrid(client_app.app, 3, config), Context(1, 1, {}, RecordDict(), config))
    assert not any(one["failures"] for one in rounds_of(tmp_path / "run"))
    ((_, task),) = client_factory.RUNS.values()
    assert task.device.type == "cpu"
    assert read_toml(tmp_path / "run" / "settings.toml")["device"] == "cpu"


def test_a_site_may_choose_its_own_device(gpus):
    gpus(2)
    for own, device in (({}, "cpu"), ({"device": "cuda:1"}, "cuda:1")):
        assert str(task_at_a_site(own).device) == device


# --- afterwards -----------------------------------------------------------------------


def test_a_resumed_run_stays_on_its_device(tmp_path, gpus):
    job = LARGE | {"out": str(tmp_path), "resume": True}
    assert chosen(job) == "cuda"  # nothing to resume yet
    (tmp_path / "settings.toml").write_text('device = "cpu"\n')
    assert chosen(job) == "cpu"


def test_the_models_of_a_run_are_read_on_the_cpu(tmp_path):
    (tmp_path / "settings.toml").write_text('method = "fedavg"\ndevice = "cuda"\n')
    (tmp_path / "model.safetensors").touch()
    assert settings_in(tmp_path).device == "cpu"


def test_steps_on_a_gpu_are_not_compiled():
    job = {"method": "fedavg", "num-rounds": 20_000, "train.local-epochs": 50}
    parts = assemble(with_defaults(job))
    for device, compiled in (("cpu", True), ("cuda", False)):
        settings = with_defaults(parts.settings.flat() | {"device": device})
        assert worth(settings, parts.task, lambda *_: True) == compiled


def test_the_runs_of_a_sweep_have_a_definite_device(tmp_path, gpus):
    runs = missing_runs(plan_of(grid_of("s", LARGE | {"seed": [0, 1]}, {}), tmp_path))
    assert [run.config["device"] for run in runs] == ["cuda"] * 2


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["device=cuda", "--workers", "2"], "worker processes of --engine inline use the CPU"),
        (["device=mps", "--gpus-per-client", "0.5"], "Ray gives clients CUDA GPUs only"),
    ],
)
def test_a_refused_run_keeps_the_one_that_it_would_overwrite(
    command, why, tmp_path, gpus, error_of
):
    folder = tmp_path / "run"
    write_file(folder / "summary.json", "{}")
    assert why in error_of("run", *words(SMALL), *command, "--overwrite", "--out", folder)
    assert (folder / "summary.json").read_text() == "{}"


# --- the engine -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "cluster", "engine", "why"),
    [
        ({}, "", "inline", "engine inline: the cores of this machine serve"),
        ({"workers": 2}, "", "inline", "engine inline: the cores of this machine serve"),
        ({"gpus_per_client": 0.5}, "", "ray", "engine ray: for --gpus-per-client"),
        ({"ray_address": "head:6379"}, "", "ray", "engine ray: for --ray-address"),
        ({"port": 9093}, "", "ray", "engine ray: for --port"),
        ({"engine": "ray"}, "", "ray", ""),
        ({"engine": "inline"}, "", "inline", ""),
        ({"engine": "deployment"}, "", "deployment", ""),
        ({"deployment": Path("sites")}, "", "deployment", "engine deployment: sites"),
        ({}, "head:6379", "ray", "engine ray: for $RAY_ADDRESS"),
        ({"engine": "inline"}, "head:6379", "inline", ""),
    ],
)
def test_the_engine_that_suits(given, cluster, engine, why, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    how, said = Launch(**given).decided()
    assert (how.engine, said) == (engine, why)


def test_how_a_run_goes_on_keeps_what_chose_the_engine():
    assert (Launch().again, Launch(engine="deployment").again) == ("", " --engine deployment")
    given = Launch(gpus_per_client=0.5, port=0)
    assert given.again == " --gpus-per-client 0.5 --port 0"
    assert given.decided()[0].engine == Launch(port=0).decided()[0].engine == "ray"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        *(
            ({"engine": engine, **option}, rf"^--[a-z-]+ is for --engine ray, not {engine}$")
            for engine in ("inline", "deployment")
            for option in ({"port": 9093}, {"ray_address": "auto"})
        ),
        ({"ray_address": " "}, "--ray-address is empty"),
        ({"engine": "inline", "workers": 0}, "--workers 0: choose 1 or more"),
        ({"engine": "deployment", "workers": 2}, "--workers is for --engine inline and ray"),
        ({"deployment": Path("sites"), "port": 0}, "does not go with --port"),
        ({"deployment": Path("sites"), "engine": "ray"}, "does not go with --engine ray"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given, why):
    refused(lambda: Launch(**given), why, UserError)


def test_a_plain_run_is_inline_and_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(flower, "run_simulation", lambda *_, **__: pytest.fail("Ray was started"))
    assert main(["run", *words(SMALL), "--out", str(tmp_path / "run")]) == 0
    assert caplog.messages.count("engine inline: the cores of this machine serve") == 1
