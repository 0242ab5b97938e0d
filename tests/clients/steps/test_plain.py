"""Local steps are those of the plain loop: to the last bit in double precision. What a
step adds to the gradient, and what a client draws.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.clients import ClientData, FedAvgClient, PFedMeClient, Split, TrainOptions
from fedapps.clients.base.options import OPTIMIZERS
from fedapps.clients.base.training import get_arrays, set_arrays
from fedapps.clients.steps import plain
from fedapps.clients.steps.sgd import SGD
from tests.helpers import assert_arrays, blobs, refused, small_net


class Unused(nn.Module):
    """``other`` is never used or, ``sometimes``, in some of the steps."""

    def __init__(self, sometimes):
        super().__init__()
        self.last, self.other, self.sometimes = nn.Linear(16, 3), nn.Linear(16, 3), sometimes

    def forward(self, x):
        z = x.flatten(1)
        return self.last(z) + (self.other(z) if self.sometimes and z[0, 0] > 0 else 0)


def normed(*layers):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), *layers, nn.Linear(6, 3))


NETS = {
    "unused": (lambda: Unused(False), 33, [10, 10, 10, 3]),
    "unused in some steps": (lambda: Unused(True), 33, [10, 10, 10, 3]),
    "batch norm": (lambda: normed(nn.BatchNorm1d(6)), 31, [10, 10, 11]),
    "batch norm, two at the end": (lambda: normed(nn.BatchNorm1d(6)), 32, [10, 10, 10, 2]),
    "group norm of one": (lambda: normed(nn.GroupNorm(6, 6)), 31, [10, 10, 11]),
    "layer norm": (lambda: normed(nn.LayerNorm(6)), 31, [10, 10, 10, 1]),
    "dropout": (lambda: normed(nn.Dropout(0.5)), 31, [10, 10, 10, 1]),
    "batch norm of images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)
        ),
        31,
        [10, 10, 10, 1],
    ),
}


@pytest.mark.parametrize(
    ("name", "optimizer", "momentum", "decay"),
    # torch's Adam counts the steps of each parameter apart
    [
        (name, optimizer, 0.9, 0.01)
        for name in NETS
        for optimizer in OPTIMIZERS
        if optimizer == "sgd" or name != "unused in some steps"
    ]
    + [("layer norm", optimizer, 0.0, 0.0) for optimizer in OPTIMIZERS]
    + [("layer norm", "sgd", 0.9, 0.0), ("layer norm", "sgd", 0.0, 0.01)],
)
def test_nets_of_all_sorts_train_as_in_a_loop_by_hand(name, optimizer, momentum, decay):
    make, count, sizes = NETS[name]
    options = TrainOptions(0.1, 1.0, momentum, decay, 2, 10, optimizer=optimizer)
    x = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train = Split(x, torch.arange(count) % 3)
    with torch_seeded(0):
        net, work = make().double(), make().double()
    client = FedAvgClient(lambda _: work, ClientData(train, train, train), model=work)
    result, _, metrics = client.fit(
        get_arrays(net), {**options.to_config(), "seed": 7, "server-round": 2}
    )

    def by_hand():
        rng = generator(7, "batches", 0, 2)
        for _ in range(2):
            order = torch.from_numpy(rng.permutation(count))
            yield from zip(train.x[order].split(sizes), train.y[order].split(sizes), strict=True)

    with torch_seeded(derived_seed(7, "dropout", 0, 2)):
        loss = plain.train(
            net.train(), functional.cross_entropy, by_hand(), 0.1, momentum, decay, optimizer
        )
    for array, (key, tensor) in zip(result, net.state_dict().items(), strict=True):
        assert torch.equal(torch.from_numpy(array), tensor), key
    assert metrics["loss"] == loss / (2 * count)
    assert client.steps_of(options) == 2 * len(sizes)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
@pytest.mark.parametrize(("more", "term", "scale"), [(0.0, 0.0, 1.0), (0.2, -0.7, 0.3)])
def test_sgd_equals_torch(momentum, decay, more, term, scale, fused, monkeypatch):
    """Alone, and with everything that a method adds: a decay of its own, terms, a
    scale of the gradients.
    """
    if not fused:  # a PyTorch without the fused operation
        monkeypatch.delattr(torch, "_fused_sgd_", raising=False)
    torch.manual_seed(0)
    ours = [torch.randn(3, 2), torch.randn(4)]
    theirs = [t.clone().requires_grad_() for t in ours]
    optimiser = SGD(momentum, decay)
    velocity = optimiser.velocity(ours)
    reference = torch.optim.SGD(theirs, 0.1, momentum=momentum, weight_decay=decay + more)
    for _ in range(10):
        gradients, extra = ([torch.randn_like(t) for t in ours] for _ in range(2))
        for tensor, gradient, other in zip(theirs, gradients, extra, strict=True):
            tensor.grad = scale * gradient + term * other
        optimiser(ours, gradients, velocity, 0.1, more, [(extra, term)] if term else [], scale)
        reference.step()
    assert_arrays(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "wanted"), [(100.0, 1.0), (0.01, 0.01)])
def test_a_bound_shortens_long_gradients_and_no_others(size, wanted):
    tensors = [torch.zeros(2), torch.zeros(1)]
    direction = [torch.tensor([2.0, 1.0]) / 3, torch.tensor([2.0]) / 3]  # of norm 1
    SGD(0.0, 0.0, max_norm=1.0)(tensors, [size * d for d in direction], [], 0.1)
    assert_arrays(tensors, [-0.1 * wanted * d for d in direction], rtol=1e-5)


def test_a_client_repeats_its_round_and_no_other():
    def fit(client_id, config):
        return FedAvgClient(small_net, blobs(), client_id).fit(get_arrays(small_net(1)), config)[0]

    base = fit(0, {"seed": 1, "server-round": 2})
    assert_arrays(base, fit(0, {"seed": 1, "server-round": 2}))
    for client, config in [
        (1, {"seed": 1, "server-round": 2}),
        (0, {"seed": 2, "server-round": 2}),
        (0, {"seed": 1, "server-round": 3}),
    ]:
        assert not np.array_equal(base[0], fit(client, config)[0])


def test_learning_rate_decays_once_a_round():
    options = TrainOptions(learning_rate=1.0, lr_decay=0.5)
    assert [options.rate(t) for t in (1, 2, 4)] == [1.0, 0.5, 0.125]
    options = TrainOptions(learning_rate=1.0, lr_decay=0.5, lr_decay_every=3)
    assert [options.rate(t) for t in (1, 3, 4, 6, 7)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_arrays_of_another_model_are_refused():
    net = small_net(0)
    refused(lambda: set_arrays(net, get_arrays(net)[:3]), "3 arrays received, but the model has 4")
    refused(
        lambda: set_arrays(net, [np.zeros((8, 5), np.float32), *get_arrays(net)[1:]]),
        r"array '1.weight' has shape \(8, 5\), but the client's model has \(8, 4\)",
    )


def test_dropout_repeats_and_leaves_the_process_alone():
    net = lambda seed: torch.nn.Sequential(small_net(seed), torch.nn.Dropout(0.5))
    config = {"server-round": 2, "local-epochs": 1, "batch-size": 100}
    trained = []
    for client, seed in ((0, 1), (0, 1), (1, 1), (0, 2)):
        torch.rand(3)  # whatever else a process draws
        state = torch.get_rng_state()
        one = FedAvgClient(net, blobs(), client)
        trained.append(one.fit(get_arrays(net(0)), {**config, "seed": seed})[0][0])
        assert torch.equal(torch.get_rng_state(), state)
    assert [np.allclose(trained[0], other) for other in trained] == [True, True, False, False]


class Spoilt(torch.nn.Module):
    """A layer that fails at its second mini-batch."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        if self.seen == 2:
            raise RuntimeError("no memory")
        return x


@pytest.mark.parametrize("kind", [FedAvgClient, PFedMeClient])
def test_an_error_in_training_leaves_the_process_alone_too(kind):
    """Also while the error object is alive: otherwise the generator would be reset when
    it is freed, between another client's draws.
    """
    net = torch.nn.Sequential(small_net(0), Spoilt())
    config = {
        "seed": 1,
        "local-epochs": 1,
        "pfedme-lambda": 1.0,
        "pfedme-inner-steps": 2,
        "pfedme-rate": 0.0,
        "pfedme-batches": "same",
    }
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no memory") as kept:
        kind(small_net, blobs(), 0, model=net).fit(get_arrays(net), config)
    assert torch.equal(torch.get_rng_state(), state)
    assert kept.value
