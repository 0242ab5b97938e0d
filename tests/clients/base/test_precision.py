"""Forward passes in bfloat16 where the message asks for it: matrix products in it, all
else in float32; float32 is what it was.
"""

import copy

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient
from torch import nn

from fedapps.algorithms.common.precision import check_bfloat16, set_bfloat16
from fedapps.clients import (
    APFLClient,
    ClassMeansClient,
    DittoClient,
    FedAvgClient,
    FedDMClient,
    FedEvgClient,
    FedRoDClient,
    FFGBDistillClient,
    LocalClient,
    PerFedAvgClient,
    ScaffoldClient,
    SuPerFedClient,
    WarmStartClient,
)
from fedapps.clients.base.precision import at_precision
from fedapps.clients.base.training import get_arrays
from fedapps.clients.steps.compiled import Compiler
from tests.clients.steps.traced import Traced
from tests.helpers import assert_arrays, blobs, refused, small_net

CONFIG = {"local-epochs": 2, "batch-size": 5, "learning-rate": 0.1, "seed": 1, "server-round": 1}
BF16 = {**CONFIG, "precision": "bf16"}
METHODS = {
    FedAvgClient: {},
    LocalClient: {},
    DittoClient: {"ditto-mu": 0.5, "ditto-epochs": 1},
    PerFedAvgClient: {
        "per-fedavg-alpha": 0.05,
        "per-fedavg-hessian": "none",
        "per-fedavg-steps": 1,
    },
    APFLClient: {"apfl-alpha": 0.3, "apfl-adaptive": True},
    SuPerFedClient: {"superfed-mixing": "layer", "superfed-nu": 1.0},
    ScaffoldClient: {},
    FedRoDClient: {},
    FFGBDistillClient: {
        "oracle-epochs": 2,
        "oracle-batch-size": 5,
        "oracle-learning-rate": 0.01,
    },
}


class Net(nn.Module):
    """``small_net`` with a name for its head, and ``seen``, the types of its linear
    layers' outputs.
    """

    head = ("out.",)

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        _, self.first, _, self.out = small_net(seed)
        self.seen = []
        for layer in (self.first, self.out):
            layer.register_forward_hook(lambda _, given, out: self.seen.append(out.dtype))

    def forward(self, x):
        return self.out(self.first(x.flatten(1)).relu())


def replies(kind, config, client=None):
    """Return the client, the arrays that it sends and what it is scored with."""
    client = at_precision(client or kind(Net, blobs(), 0, model=Net()), config)
    config = {**config, **METHODS.get(kind, {})}
    start = get_arrays(Net(5))
    control = [0 * a for a in start] if kind is ScaffoldClient else []
    return client, client.fit(start + control, config)[0], client.evaluate(start, config)


@pytest.mark.parametrize("kind", METHODS)
def test_linear_layers_compute_in_bfloat16_and_all_else_in_float32(kind):
    plain, wanted, _ = replies(kind, CONFIG)
    assert set(plain.model.seen) == {torch.float32}
    client, arrays, _ = replies(kind, BF16)
    assert set(client.model.seen) == {torch.bfloat16}
    assert {a.dtype for a in arrays} <= {np.dtype(np.float32)}
    assert {p.dtype for p in client.model.parameters()} == {torch.float32}
    assert not all(np.array_equal(a, b) for a, b in zip(arrays, wanted, strict=True)) or (
        kind is LocalClient  # sends nothing
    )
    assert_arrays(arrays, wanted, rtol=0.1, atol=0.1)


def test_a_messages_precision_is_that_of_its_answer_only():
    net = Net()
    client = FedAvgClient(Net, blobs(), model=net)
    for config, kind in ((BF16, torch.bfloat16), (CONFIG, torch.float32), (BF16, torch.bfloat16)):
        net.seen.clear()
        assert at_precision(client, config) is client
        client.score(client.data.test)
        assert set(net.seen) == {kind}
    at_precision(client, {})
    assert type(net) is Net


def test_a_copy_computes_with_its_own_parameters():
    net = Net(1)
    set_bfloat16(net, True)
    other = copy.deepcopy(net)
    other.load_state_dict(Net(2).state_dict())
    x = blobs().test.x
    assert torch.allclose(other(x), Net(2)(x), rtol=0.05, atol=0.05)
    assert not torch.allclose(other(x), net(x), rtol=0.05, atol=0.05)


def test_a_net_in_double_precision_stays_so():
    net = Net().double()
    set_bfloat16(net, True)
    assert net(blobs().test.x.double()).dtype == torch.float64


class Sequence(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


def test_images_and_recurrent_layers_train_in_bfloat16():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    for net, x in ((conv, torch.randn(5, 1, 8, 8)), (Sequence(8, 3), torch.randn(5, 4, 8))):
        set_bfloat16(net, True)
        out = net(x)
        assert out.dtype == torch.float32
        out.sum().backward()
        assert {p.grad.dtype for p in net.parameters()} == {torch.float32}
    assert torch.backends.mkldnn.enabled


def test_steps_in_bfloat16_are_not_compiled_and_the_log_says_so(tmp_path):
    client = FedAvgClient(Net, blobs(), 0, model=Net())
    client.compiler = Compiler(tmp_path)
    assert_arrays(
        replies(FedAvgClient, {**BF16, "compile": "on"}, client)[1], replies(FedAvgClient, BF16)[1]
    )
    assert client.compiler.logged == {"steps in bfloat16 are not compiled"}


def test_compiled_steps_in_float32_are_not_those_of_the_same_net_in_bfloat16(tmp_path):
    client = FedAvgClient(Net, blobs(), 0, model=Net())
    client.compiler = Traced(tmp_path)
    for config in (CONFIG, BF16, CONFIG):
        found = replies(FedAvgClient, {**config, "compile": "on"}, client)[1]
        assert_arrays(found, replies(FedAvgClient, config)[1], rtol=1e-5, atol=1e-6)


def test_both_halves_of_a_warm_start_act_on_it():
    net = Net()
    WarmStartClient({"first": lambda: FedAvgClient(Net, blobs(), model=net)}).fit(
        get_arrays(Net(5)), {**BF16, "warm-start-half": "first"}
    )
    assert set(net.seen) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (FedEvgClient, "it trains a net of its own"),
        (FedDMClient, "it makes images"),
        (ClassMeansClient, "it sends means"),
    ],
)
def test_a_client_that_cannot_says_why(kind, why):
    refused(
        lambda: at_precision(kind.__new__(kind), BF16),
        f"^precision = 'bf16': {kind.__name__}: {why}",
    )


def test_a_client_of_the_users_may_have_an_option_of_this_name():
    client = NumPyClient()
    assert at_precision(client, BF16) is client


def test_a_gpu_without_bfloat16_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    refused(
        lambda: check_bfloat16(torch.device("cuda", 0)),
        r"^precision = 'bf16': the device cuda:0 has no bfloat16",
    )
    refused(
        lambda: set_bfloat16(nn.Linear(1, 1, device="meta"), True),
        "the device meta has no bfloat16",
    )
