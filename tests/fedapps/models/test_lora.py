"""Low-rank adapters: the equation, what is trained, sent, kept and exported."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedapps import Run
from fedapps.clients import FedAvgClient
from fedapps.errors import UserError
from fedapps.models.base import Classifier
from fedapps.models.image_nets import build_model
from fedapps.models.lora import LowRank, adapt, frozen_part
from fedapps.models.options import ModelOptions
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.strategies import FedAvg
from tests.helpers import (
    arrays_of,
    assert_arrays,
    blobs,
    dying_after,
    outcome_of,
    refused,
    rounds_of,
    run_inline,
    simulate,
)

JOB = {"num-clients": 3, "clients-per-round": 0, "num-rounds": 2, "data.max-samples": 300}
JOB |= {"model.name": "mcmahan-2nn", "train.local-epochs": 1, "client-store": "disk"}
LORA = JOB | {"model.adapter": "lora", "model.lora-rank": 4}
#: A and B of layers of 64 x 200 and 200 x 200, and a head of 200 x 10 with biases.
SENT = 4 * (4 * (64 + 200) + 4 * (200 + 200) + 200 * 10 + 10)
FEDSA = {"method": "partial", "partial.keep": "*lora_B"}
SAMPLES = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def base(tmp_path):
    """A file with weights, biases included, that are not those of the seed."""
    save_file(
        {
            name: values + 0.01
            for name, values in build_model("mcmahan-2nn", (1, 8, 8), 10, 77).state_dict().items()
        },
        tmp_path / "base.safetensors",
    )
    return str(tmp_path / "base.safetensors")


def task_of(**settings):
    return build_task(with_defaults(LORA | settings))


def plain(arrays):
    """A net without adapters."""
    net = build_model("mcmahan-2nn", (1, 8, 8), 10, 0)
    net.load_state_dict(arrays)
    return net


def test_at_first_the_scores_are_the_bases(base):
    task = task_of(**{"model.weights": base})
    expected = plain(load_file(base))
    assert torch.equal(task.initial_model()(SAMPLES), expected(SAMPLES))
    other = task.fresh_model(5)  # another head and other A, the same frozen part
    assert torch.equal(other.body(SAMPLES), expected.body(SAMPLES))
    assert not torch.equal(other(SAMPLES), expected(SAMPLES))


def test_a_round_moves_adapters_and_head_and_sends_nothing_else(tmp_path, base):
    parts = assemble(with_defaults(LORA | {"model.weights": base}))
    task = parts.task
    client = FedAvgClient(task.fresh_model, task.client_data(0, 3), 0)
    before = list(task.initial_arrays().values())
    config = {"server-round": 1, "seed": 0, **parts.settings.train.to_config()}
    reply, _, _ = client.fit(before, config)
    assert sum(array.nbytes for array in reply) == SENT
    # with B = 0 the gradient of A is 0, but only in the first step
    assert not any(np.array_equal(old, new) for old, new in zip(before, reply, strict=True))
    kept = frozen_part(client.model, client.model.head)
    assert_arrays(
        [kept[f"body.{i}.parametrizations.weight.original"] for i in (1, 3)],
        [load_file(base)[f"body.{i}.weight"] for i in (1, 3)],
    )
    run_inline(tmp_path / "run", **LORA, **{"model.weights": base})
    for row in rounds_of(tmp_path / "run"):
        assert 3 * SENT < row["bytes-up"] < 3 * (SENT + 3000)  # names and metrics


class Linear(Classifier):
    """A linear net of two layers, 4 -> 6 -> 3."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(4, 6, bias=False)), nn.Linear(6, 3))


def adapted(seed):
    """The net with A = I, and alpha = r = 4."""
    net = Linear(seed)
    options = ModelOptions(lora_rank=4, lora_alpha=4.0)
    adapt(net, options, frozen_part(Linear(1), net.head), seed)
    with torch.no_grad():
        net.body[1].parametrizations.weight[0].lora_A.copy_(torch.eye(4))
    return net


def test_with_a_the_identity_one_step_is_fedavgs_step_on_the_weight():
    """The gradient at B is that at W times A^T, and that at A is 0 since B is."""
    config = {"local-epochs": 1, "batch-size": 50, "momentum": 0.0, "seed": 3}

    def run(build):
        start = {name: t.numpy() for name, t in build(1).state_dict().items()}
        makes = lambda i, _: FedAvgClient(build, blobs(i, 50 - 10 * i), i)
        return arrays_of(simulate(FedAvg(), makes, 2, start, 1, config))

    whole, low = run(Linear), run(adapted)
    moved = low["body.1.parametrizations.weight.0.lora_B"]
    assert np.abs(moved).max() > 1e-3
    first = Linear(1).body[1].weight.detach().numpy()
    np.testing.assert_allclose(first + moved, whole["body.1.weight"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(low["classifier.weight"], whole["classifier.weight"], rtol=1e-5)


class Conv1D(nn.Module):
    """As that of transformers: x W + b."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 7))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize(
    ("layer", "samples"),
    [
        (nn.Linear(5, 7), torch.randn(2, 5)),
        (Conv1D(), torch.randn(2, 5)),
        (nn.Conv2d(5, 7, 1), torch.randn(2, 5, 3, 3)),
    ],
)
def test_the_addition_is_alpha_over_r_times_b_a_of_the_inputs(layer, samples):
    net, before = nn.Sequential(layer), layer(samples).detach()
    options = ModelOptions(lora_rank=2, lora_alpha=6.0)
    adapt(net, options, frozen_part(net, ("head.",)), 0)
    low = layer.parametrizations.weight[0]
    assert isinstance(low, LowRank)
    assert (low.lora_A.shape, low.lora_B.shape) == ((2, 5), (7, 2))
    nn.init.normal_(low.lora_B)
    added = torch.einsum("or,ri,ni...->no...", low.lora_B, low.lora_A, samples)
    torch.testing.assert_close(net(samples), before + 3.0 * added)


def test_fedsa_averages_a_and_keeps_each_clients_b_and_resumes_to_the_same_bits(tmp_path, base):
    job = LORA | FEDSA | {"model.weights": base, "num-rounds": 3, "checkpoint-every": 1}
    run_inline(tmp_path / "whole", **job)
    for row in rounds_of(tmp_path / "whole"):
        b = 4 * 4 * (200 + 200)
        assert 3 * (SENT - b) < row["bytes-up"] < 3 * (SENT - b + 3000)
    with dying_after(2), pytest.raises(AssertionError):  # exit status 130
        run_inline(tmp_path / "cut", **job)
    run_inline(tmp_path / "cut", "--resume", **job)
    assert outcome_of(tmp_path / "cut") == outcome_of(tmp_path / "whole")
    run = Run(tmp_path / "whole")
    scored = [run.personal_model(client) for client in range(3)]
    changes = [net.body[3].weight - load_file(base)["body.3.weight"] for net in scored]
    assert not torch.allclose(changes[0], changes[1])
    # B_k A with the same A for all: together of no more than its rank
    assert torch.linalg.matrix_rank(torch.cat(changes).detach(), atol=1e-5) == 4


def test_what_is_exported_has_the_adapters_in_its_weights(tmp_path, base):
    from fedapps.commands.parser import main

    out = tmp_path / "run"
    run_inline(out, **LORA, **{"model.weights": base})
    assert main(["export", str(out), "--program", str(out / "net.pt2")]) == 0
    net = task_of(**{"model.weights": base}).work_model()
    net.load_state_dict(load_file(out / "model.safetensors"))
    expected = net.eval()(SAMPLES)
    for found in (
        plain(load_file(out / "global.safetensors")),
        Run(out).model(),
        torch.export.load(out / "net.pt2").module(),
    ):
        torch.testing.assert_close(found(SAMPLES), expected)
    # and another run can start from it
    again = task_of(**{"model.weights": str(out / "global.safetensors")})
    torch.testing.assert_close(again.initial_model()(SAMPLES), expected)
    save_file({k: v + 1 for k, v in load_file(base).items()}, base)
    refused(lambda: Run(out).model(), "^model.frozen = '.*': .* other frozen weights", UserError)
    given = [f"{key}={json.dumps(value)}" for key, value in LORA.items()]
    assert main(["run", *given, f"model.weights={base}", "--out", str(out), "--resume"]) == 2


def test_parts_of_the_clients_own_start_as_the_file(tmp_path, base):
    job = JOB | {"model.weights": base, "train.learning-rate": 1e-9, "num-rounds": 1}
    for method in ("local", "fedper"):
        run_inline(tmp_path / method, method=method, **job)
        found = Run(tmp_path / method).personal_model(0)
        torch.testing.assert_close(found(SAMPLES), plain(load_file(base))(SAMPLES))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model.lora-targets": "nothing"}, "matches no .*: choose among body.1, body.3"),
        ({"model.lora-targets": "classifier.*"}, "model.lora-targets = 'classifier.*': matches no"),
        ({"model.lora-rank": 65}, "lora-rank = 65: layer 'body.1' has rank 64 at most"),
        ({"model.adapter": "none"}, "model.adapter = 'none': with lora-rank"),
        ({"method": "ffgb"}, "model.adapter = 'lora': clients of method 'ffgb' do not train"),
        ({"model.name": "logistic"}, "choose among none: another net"),
    ],
)
def test_mistakes_are_one_line(given, message):
    refused(lambda: assemble(with_defaults(LORA | given)), message, UserError)
