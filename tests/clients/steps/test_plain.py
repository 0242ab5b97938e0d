"""Local steps are those of the plain loop: to the last bit in double precision."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.clients import ClientData, FedAvgClient, Split, TrainOptions
from fedapps.clients.base.options import OPTIMIZERS
from fedapps.clients.base.training import get_arrays, set_arrays
from fedapps.clients.steps import plain
from fedapps.clients.steps.batches import mini_batches
from tests.helpers import blobs, small_net


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_client_trains_as_the_plain_loop(momentum, weight_decay, optimizer):
    options = TrainOptions(
        0.1, 1.0, momentum, weight_decay, local_epochs=3, batch_size=10, optimizer=optimizer
    )
    samples = blobs(n=55).train
    train = Split(samples.x.double(), samples.y)
    assert len(train) % 10  # the last mini-batch of an epoch is smaller
    client = FedAvgClient(lambda seed: small_net(seed).double(), ClientData(train, train, train))
    start = get_arrays(small_net(5).double())
    result, _, metrics = client.fit(start, {**options.to_config(), "seed": 7, "server-round": 2})

    net = small_net(0).double()
    set_arrays(net, start)
    batches = mini_batches(train, options, generator(7, "batches", 0, 2), net)
    loss = plain.train(
        net, functional.cross_entropy, batches, 0.1, momentum, weight_decay, optimizer
    )
    for array, tensor in zip(result, net.state_dict().values(), strict=True):
        assert torch.equal(torch.from_numpy(array), tensor)
    assert metrics["loss"] == loss / (3 * len(train))


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
    ("name", "optimizer"),
    # torch's Adam counts the steps of each parameter apart
    [(n, o) for n in NETS for o in OPTIMIZERS if o == "sgd" or n != "unused in some steps"],
)
def test_nets_of_all_sorts_train_as_in_a_loop_by_hand(name, optimizer):
    make, count, sizes = NETS[name]
    options = TrainOptions(0.1, 1.0, 0.9, 0.01, 2, 10, optimizer=optimizer)
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 4, 4, generator=drawn, dtype=torch.float64)
    train = Split(x, torch.arange(count) % 3)
    with torch_seeded(0):
        net, work = make().double(), make().double()
    client = FedAvgClient(lambda _: work, ClientData(train, train, train), model=work)
    config = {**options.to_config(), "seed": 7, "server-round": 2}
    result, _, metrics = client.fit(get_arrays(net), config)

    def by_hand():
        rng = generator(7, "batches", 0, 2)
        for _ in range(2):
            order = torch.from_numpy(rng.permutation(count))
            yield from zip(train.x[order].split(sizes), train.y[order].split(sizes), strict=True)

    with torch_seeded(derived_seed(7, "dropout", 0, 2)):
        loss = plain.train(
            net.train(), functional.cross_entropy, by_hand(), 0.1, 0.9, 0.01, optimizer
        )
    for array, (key, tensor) in zip(result, net.state_dict().items(), strict=True):
        assert torch.equal(torch.from_numpy(array), tensor), key
    assert metrics["loss"] == loss / (2 * count)
    assert client.steps_of(options) == 2 * len(sizes)
