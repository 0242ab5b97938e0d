"""Every method with a net on a pretended GPU: no tensor is left on the CPU, and the
results are those of the CPU.
"""

from dataclasses import replace

import pytest
import torch

from fedapps.clients.steps.compiled import Compiler
from fedapps.engines.inline import InlineGrid
from fedapps.methods import METHODS
from fedapps.runs import client_factory
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.prepare import prepare_folder, with_defaults
from tests.helpers import assert_same, rounds_of, some_slow
from tests.pretended_device import CUDA, pretended_cuda
from tests.small_jobs import unlike_at_clients

JOB = {
    "num-clients": 2,
    "clients-per-round": 0,
    "num-rounds": 2,
    "evaluate-every": 1,
    "checkpoint-every": 0,
    "data.max-samples": 80,
    "data.partition": "iid",
    "train.local-epochs": 1,
    "ensemble.epochs": 1,
    "public.samples": 40,
    "feddm.steps": 2,
    "ffgb.fit-steps": 5,
    "superfed.start": 0.0,
    "synthetic.steps": 5,
}
NETS = {
    name: task
    for name, entry in METHODS.items()
    for task in ("digits", "ensemble-classification", "constrained-classification")
    if task in entry.tasks
}


def run(method, device, folder, **keys):
    settings = with_defaults(
        {**JOB, "method": method, "task": NETS[method], "device": device, **keys}
    )
    settings = replace(settings, out=str(folder))
    client_factory.RUNS.clear()
    prepare_folder(settings, overwrite=True)
    execute(settings, InlineGrid(app, settings.num_clients, settings.flat()))
    rounds = rounds_of(folder)
    assert not any(one["failures"] for one in rounds)
    return {one["round"]: {key: one.get(key) for key in ("train", "evaluate")} for one in rounds}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", NETS)
def test_a_run_on_a_gpu_can_be_repeated_and_is_near_the_run_on_the_cpu(method, tmp_path):
    first, again = (run(method, "cuda", tmp_path / name) for name in ("first", "again"))
    assert_same(first, again)
    for number, wanted in run(method, "cpu", tmp_path / "cpu").items():
        for phase, scores in wanted.items():
            losses = {name: value for name, value in (scores or {}).items() if name == "loss"}
            found = {name: first[number][phase][name] for name in losses}
            near = 0.2 if method == "feddm" else 0.01  # its draws are the GPU's own
            assert found == pytest.approx(losses, rel=near), (number, phase)


@pytest.mark.parametrize(
    "method",
    some_slow(unlike_at_clients(NETS), "fedavg", "superfed-mm", "ffgb", "fedboost", "fedfw"),
)
def test_a_run_on_the_pretended_device_equals_the_run_on_the_cpu(method, tmp_path, monkeypatch):
    wanted = run(method, "cpu", tmp_path / "cpu")
    with pretended_cuda(monkeypatch):
        on_device = run(method, "cuda", tmp_path / "cuda")
    assert_same(wanted, on_device)


def test_nothing_is_compiled_on_the_pretended_device(tmp_path, monkeypatch):
    compiler = Compiler(tmp_path / "steps")
    monkeypatch.setattr("fedapps.runs.assembly.compiler", lambda: compiler)
    wanted = run("fedavg", "cpu", tmp_path / "cpu", **{"train.compile": "off"})
    with pretended_cuda(monkeypatch):
        on_device = run("fedavg", "cuda", tmp_path / "cuda", **{"train.compile": "on"})
    assert compiler.logged == {"only steps on the CPU are compiled"}
    assert_same(wanted, on_device)


def test_the_pretended_device_refuses_what_a_gpu_refuses(monkeypatch):
    with pretended_cuda(monkeypatch):
        there, here = torch.arange(3.0, device=CUDA), torch.ones(3)
        assert there.device == CUDA
        for wrong in (
            lambda: there + here,
            lambda: there.numpy(),
            lambda: torch.cat([there, here]),
        ):
            with pytest.raises(RuntimeError):
                wrong()
        assert (there + 1.0 + torch.tensor(1.0)).cpu().tolist() == [2.0, 3.0, 4.0]
        there[torch.tensor([0])] = 5.0
        assert float(there.sum()) == 8.0
