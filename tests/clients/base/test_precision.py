"""Forward passes in bfloat16 where the message asks for it: matrix products in it, all
else in float32; float32 is what it was.
"""

import copy

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

from fedapps.algorithms.common.precision import set_bfloat16
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
    to_client_app,
)
from fedapps.clients.base.precision import at_precision
from fedapps.clients.base.training import get_arrays
from fedapps.clients.steps.compiled import Compiler
from fedapps.clients.warm_start import WarmStartClient
from fedapps.strategies import FedAvg
from tests.clients.steps.traced import Traced
from tests.helpers import arrays_of, assert_arrays, blobs, simulate, small_net

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


def sent(kind):
    arrays = get_arrays(Net(5))
    return arrays + [0 * a for a in arrays] if kind is ScaffoldClient else arrays


def replies(kind, config):
    client = kind(Net, blobs(), 0, model=Net())
    at_precision(client, config)
    config = {**config, **METHODS.get(kind, {})}
    trained = client.fit(sent(kind), config)
    return client, trained, client.evaluate(get_arrays(Net(5)), config)


@pytest.mark.parametrize("kind", METHODS)
def test_linear_layers_compute_in_bfloat16_and_all_else_in_float32(kind):
    plain, wanted, _ = replies(kind, CONFIG)
    assert set(plain.model.seen) == {torch.float32}
    client, (arrays, *_), (loss, _, scores) = replies(kind, BF16)
    assert set(client.model.seen) == {torch.bfloat16}
    assert all(a.dtype == np.float32 for a in arrays)
    assert all(p.dtype == torch.float32 for p in client.model.parameters())
    assert not all(np.array_equal(a, b) for a, b in zip(arrays, wanted[0], strict=True)) or (
        kind is LocalClient  # sends nothing
    )
    assert_arrays(arrays, wanted[0], rtol=0.1, atol=0.1)
    assert loss == pytest.approx(scores["loss"])


def test_losses_and_gradients_are_float32():
    client = FedAvgClient(Net, blobs())
    at_precision(client, BF16)
    loss = client.loss(client.data.train.x, client.data.train.y)
    gradients = torch.autograd.grad(loss, list(client.model.parameters()))
    assert {loss.dtype, *(g.dtype for g in gradients)} == {torch.float32}
    net = Net()
    exact = nn.functional.cross_entropy(net(client.data.train.x), client.data.train.y)
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.02)
    assert float(loss) != float(exact)


def test_the_default_is_float32_to_the_last_bit():
    assert_arrays(
        replies(FedAvgClient, {**CONFIG, "precision": "float32"})[1][0],
        replies(FedAvgClient, CONFIG)[1][0],
    )


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


def test_fed_rods_two_heads_compute_in_bfloat16():
    client = FedRoDClient(Net, blobs(), model=Net())
    at_precision(client, BF16)
    client.fit(get_arrays(Net(5)), BF16)
    client.evaluate(get_arrays(Net(5)), BF16)
    assert set(client.model.seen) == {torch.bfloat16}


def test_images_and_recurrent_layers_train_in_bfloat16():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    for net, x in ((conv, torch.randn(5, 1, 8, 8)), (Last(nn.LSTM(8, 3)), torch.randn(5, 4, 8))):
        set_bfloat16(net, True)
        out = net(x)
        assert out.dtype == torch.float32
        out.sum().backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())
    assert torch.backends.mkldnn.enabled


class Last(nn.Module):
    def __init__(self, lstm) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x):
        return self.lstm(x)[0]


def test_steps_in_bfloat16_are_not_compiled_and_the_log_says_so(tmp_path):
    client = FedAvgClient(Net, blobs(), 0, model=Net())
    client.compiler = Compiler(tmp_path)
    at_precision(client, BF16)
    found = client.fit(sent(FedAvgClient), {**BF16, "compile": "on"})[0]
    assert_arrays(found, replies(FedAvgClient, BF16)[1][0])
    assert client.compiler.logged == {"steps in bfloat16 are not compiled"}


def test_compiled_steps_in_float32_are_not_those_of_the_same_net_in_bfloat16(tmp_path):
    client = FedAvgClient(Net, blobs(), 0, model=Net())
    client.compiler = Traced(tmp_path)
    for config in (CONFIG, BF16, CONFIG):
        at_precision(client, config)
        found = client.fit(sent(FedAvgClient), {**config, "compile": "on"})[0]
        assert_arrays(found, replies(FedAvgClient, config)[1][0], rtol=1e-5, atol=1e-6)


def test_a_run_of_a_library_user_acts_on_it():
    nets = []

    def client_fn(number, context):
        nets.append(Net())
        return FedAvgClient(Net, blobs(), number, model=nets[-1])

    initial = {name: t.numpy() for name, t in Net().state_dict().items()}
    result = simulate(FedAvg(), client_fn, 2, initial, 1, BF16, evaluate_config=ConfigRecord(BF16))
    assert {kind for net in nets for kind in net.seen} == {torch.bfloat16}
    assert all(array.dtype == np.float32 for array in arrays_of(result).values())


def test_both_halves_of_a_warm_start_act_on_it():
    net = Net()
    client = WarmStartClient({"first": lambda: FedAvgClient(Net, blobs(), model=net)})
    client.fit(get_arrays(Net(5)), {**BF16, "warm-start-half": "first"})
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
    client = kind.__new__(kind)
    with pytest.raises(ValueError, match=f"^precision = 'bf16': {kind.__name__}: {why}"):
        at_precision(client, BF16)


def test_a_client_of_the_users_may_have_an_option_of_this_name():
    from flwr.client import NumPyClient

    client = NumPyClient()
    assert at_precision(client, BF16) is client
    assert to_client_app(lambda context: client)


def test_a_gpu_without_bfloat16_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)

    class There(Net):
        def parameters(self, recurse=True):
            yield torch.nn.Parameter(torch.empty(0, device="meta"))

    from fedapps.algorithms.common.precision import check_bfloat16

    with pytest.raises(ValueError, match=r"^precision = 'bf16': the device cuda:0 has no bfloat16"):
        check_bfloat16(torch.device("cuda", 0))
    with pytest.raises(ValueError, match="the device meta has no bfloat16"):
        set_bfloat16(There(), True)
