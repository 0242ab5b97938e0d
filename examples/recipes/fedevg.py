"""FedEvg in your app: labelled images that follow all clients' classifiers."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

from fedapps.clients import (
    ClientData,
    FedEvgClient,
    MessageStore,
    Split,
    TrainOptions,
    to_client_app,
)
from fedapps.strategies import ClientGrid, FedEvg

SHAPE, CLASSES = (1, 8, 8), 2


def build(seed):
    """Return a net: images (n, 1, 8, 8) -> logits (n, 2)."""
    torch.manual_seed(seed)
    flat = torch.nn.Flatten()
    return torch.nn.Sequential(
        flat, torch.nn.Linear(64, 32), torch.nn.SiLU(), torch.nn.Linear(32, 2)
    )


def images(seed):
    """Return 60 images, whose left (class 0) or right half (class 1) is bright."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, 60)
    x = 0.2 * random.random((60, *SHAPE))
    x[y == 0, :, :, :4] += 0.8
    x[y == 1, :, :, 4:] += 0.8
    return Split(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def client_fn(context):
    """Return a client with images of its own."""
    number = context.node_config["partition-id"]
    data = ClientData(images(number), images(100 + number), images(200 + number))
    return FedEvgClient(build, build, data, number, MessageStore(context.state))


def evaluator(x, y, server_round):
    """Return a classifier trained on the synthetic images, which the clients score."""
    net = build(0)
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(50):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y).long())
        loss.backward()
        optimiser.step()
    return {name: array.numpy() for name, array in net.state_dict().items()}, {}


app, server = to_client_app(client_fn), ServerApp()


@server.main()
def main(grid, context):
    """Return the accuracy of the classifier after 30 rounds."""
    strategy = FedEvg(SHAPE, CLASSES, evaluator, samples=20)
    first = strategy.first_arrays()
    start = ArrayRecord({name: Array(array) for name, array in first.items()})
    config = ConfigRecord(TrainOptions(local_epochs=1, learning_rate=0.01).to_config())
    result = strategy.start(
        ClientGrid(grid), start, num_rounds=30, train_config=config, evaluate_every=0
    )
    return result.evaluate_metrics_clientapp[30]["accuracy"]
