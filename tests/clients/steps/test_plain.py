"""Local steps are those of the plain loop: to the last bit in double precision."""

import pytest
import torch
from torch.nn import functional

from fedapps.algorithms.common.seeds import generator
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
