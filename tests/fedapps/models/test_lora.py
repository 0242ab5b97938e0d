"""Low-rank adapters: the equation, what is trained, sent, kept and exported."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedapps import Run
from fedapps.clients import FedAvgClient
from fedapps.errors import UserError
from fedapps.models.image_nets import build_model
from fedapps.models.lora import adapt, frozen_part
from fedapps.models.options import ModelOptions
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import (
    assert_arrays,
    blobs,
    dying_after,
    outcome_of,
    refused,
    rounds_of,
    run_inline,
)

JOB = {
    **{"num-clients": 3, "clients-per-round": 0, "num-rounds": 3, "data.max-samples": 300},
    **{"model.name": "mcmahan-2nn", "train.local-epochs": 1, "checkpoint-every": 1},
}
LORA = JOB | {"model.adapter": "lora", "model.lora-rank": 4}
#: Bytes of A and of B for layers of 64 x 200 and 200 x 200, of a head of 200 x 10 with
#: biases; and most that names and metrics of a message take.
A, B, HEAD, MORE = 4 * 4 * (64 + 200), 4 * 4 * (200 + 200), 4 * (200 * 10 + 10), 2000
SAMPLES = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def plain(arrays):
    """A net without adapters."""
    net = build_model("mcmahan-2nn", (1, 8, 8), 10, 77)
    net.load_state_dict(arrays)
    return net.eval()


@pytest.fixture
def base(tmp_path):
    """A file with weights, biases included, that are not those of a run's seed."""
    net = build_model("mcmahan-2nn", (1, 8, 8), 10, 77)
    file = tmp_path / "base.safetensors"
    save_file({name: values + 0.01 for name, values in net.state_dict().items()}, file)
    return str(file)


def test_at_first_the_scores_are_the_bases_and_a_step_moves_only_adapters_and_head(base):
    parts = assemble(with_defaults(LORA | {"model.weights": base}))
    task, expected = parts.task, plain(load_file(base))
    assert torch.equal(task.initial_model()(SAMPLES), expected(SAMPLES))
    # of another seed: other A, the same frozen part
    assert torch.equal(task.fresh_model(5).body(SAMPLES), expected.body(SAMPLES))
    client = FedAvgClient(task.fresh_model, task.client_data(0, 3), 0)
    before = list(task.initial_arrays().values())
    config = {"server-round": 1, "seed": 0, **parts.settings.train.to_config()}
    reply, _, _ = client.fit(before, config)
    assert sum(array.nbytes for array in reply) == A + B + HEAD
    assert not any((old == new).all() for old, new in zip(before, reply, strict=True))
    frozen = {n: p for n, p in client.model.named_parameters() if not p.requires_grad}
    assert_arrays(
        [frozen[f"body.{i}.parametrizations.weight.original"] for i in (1, 3)],
        [load_file(base)[f"body.{i}.weight"] for i in (1, 3)],
    )


def test_with_a_the_identity_a_step_is_that_on_the_weight():
    """The gradient at B is that at W times A^T; that at A is 0 since B is."""
    whole, low = (build_model("mlp", (1, 1, 4), 3, 1) for _ in range(2))
    first = whole.body[1].weight.detach().clone()
    adapt(low, ModelOptions(lora_rank=4, lora_alpha=4.0), frozen_part(low, low.head), 0)
    low.body[1].parametrizations.weight[0].lora_A.data.copy_(torch.eye(4))
    config = {"local-epochs": 1, "batch-size": 50, "momentum": 0.0, "seed": 3, "server-round": 1}
    for net in (whole, low):
        arrays = [values.numpy() for values in net.state_dict().values()]
        FedAvgClient(lambda _: net, blobs(0, 50), 0).fit(arrays, config)
    assert (whole.body[1].weight - first).abs().max() > 1e-3
    torch.testing.assert_close(low.body[1].weight, whole.body[1].weight)
    torch.testing.assert_close(low.classifier[0].weight, whole.classifier[0].weight)


class Conv1D(nn.Module):
    """As that of transformers: x W."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 7))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("layer", [nn.Linear(5, 7), Conv1D(), nn.Conv2d(5, 7, 1)])
def test_the_addition_is_alpha_over_r_times_b_a_of_the_inputs(layer):
    samples = torch.randn(2, 5, 3, 3) if isinstance(layer, nn.Conv2d) else torch.randn(2, 5)
    before = layer(samples).detach()
    net, options = nn.Sequential(layer), ModelOptions(lora_rank=2, lora_alpha=6.0)
    adapt(net, options, frozen_part(net, ("head.",)), 0)
    low = layer.parametrizations.weight[0]
    nn.init.normal_(low.lora_B)
    added = torch.einsum("or,ri,ni...->no...", low.lora_B, low.lora_A, samples)
    torch.testing.assert_close(net(samples), before + 3.0 * added)


def test_fedsa_averages_a_and_keeps_each_clients_b_and_resumes_to_the_same_bits(tmp_path, base):
    job = LORA | {"method": "partial", "partial.keep": "*lora_B", "model.weights": base}
    whole = tmp_path / "whole"
    run_inline(whole, **job)
    assert all(0 < row["bytes-up"] - 3 * (A + HEAD) < 3 * MORE for row in rounds_of(whole))
    with dying_after(2), pytest.raises(AssertionError):  # exit status 130
        run_inline(tmp_path / "cut", **job)
    run_inline(tmp_path / "cut", "--resume", **job)
    assert outcome_of(tmp_path / "cut") == outcome_of(whole)
    scored = [Run(whole).personal_model(client) for client in range(3)]
    changes = [net.body[3].weight - load_file(base)["body.3.weight"] for net in scored]
    assert not torch.allclose(changes[0], changes[1])
    # B_k A with the same A for all: together of no more than its rank
    assert torch.linalg.matrix_rank(torch.cat(changes).detach(), atol=1e-5) == 4


def test_what_is_exported_has_the_adapters_in_its_weights(tmp_path, base):
    from fedapps.commands.parser import main

    out, job = tmp_path / "run", LORA | {"model.weights": base}
    run_inline(out, **job)
    assert all(0 < row["bytes-up"] - 3 * (A + B + HEAD) < 3 * MORE for row in rounds_of(out))
    assert main(["export", str(out), "--program", str(out / "net.pt2")]) == 0
    net = build_task(with_defaults(job)).work_model()
    net.load_state_dict(load_file(out / "model.safetensors"))
    expected = net.eval()(SAMPLES)
    assert not torch.allclose(expected, plain(load_file(base))(SAMPLES))
    program = torch.export.load(out / "net.pt2").module()
    for found in (plain(load_file(out / "global.safetensors")), Run(out).model(), program):
        torch.testing.assert_close(found(SAMPLES), expected)
    save_file({name: values + 1 for name, values in load_file(base).items()}, base)
    refused(lambda: Run(out).model(), "^model.frozen = '.*': .* other frozen weights", UserError)
    with pytest.raises(AssertionError):
        run_inline(out, "--resume", **job)


@pytest.mark.parametrize("method", ["local", "fedper"])
def test_parts_of_the_clients_own_start_as_the_file(tmp_path, base, method):
    job = JOB | {"model.weights": base, "train.learning-rate": 1e-9, "num-rounds": 1}
    run_inline(tmp_path / "run", method=method, **job)
    found = Run(tmp_path / "run").personal_model(0)
    torch.testing.assert_close(found(SAMPLES), plain(load_file(base))(SAMPLES))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model.lora-targets": "nothing"}, "matches no .*: choose among body.1, body.3"),
        ({"model.lora-targets": "classifier.*"}, "model.lora-targets = 'classifier.*': matches no"),
        ({"model.lora-rank": 65}, "lora-rank = 65: layer 'body.1' has rank 64 at most"),
        ({"method": "ffgb"}, "model.adapter = 'lora': clients of method 'ffgb' do not train"),
        ({"model.name": "logistic"}, "choose among none: another net"),
    ],
)
def test_mistakes_are_one_line(given, message):
    refused(lambda: assemble(with_defaults(LORA | given)), message, UserError)


def test_a_repeated_sweep_knows_its_finished_runs(tmp_path):
    from fedapps.commands.parser import main

    given = [f"{key}={json.dumps(value)}" for key, value in (LORA | {"num-rounds": 1}).items()]
    (tmp_path / "grid.toml").write_text('method = ["fedavg", "local"]')
    words = ["sweep", str(tmp_path / "grid.toml"), *given, "--out", str(tmp_path / "sweep")]
    assert [main(words), main(words)] == [0, 0]
