"""SuPerFed around ``train(net, loader)``, which takes no epochs."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedapps.clients import SuPerFedLoop, answer_identity
from fedapps.strategies import ClientGrid, SuPerFed, SuPerFedOptions


def build():
    """Return your net."""
    return torch.nn.Linear(4, 2)


def loader_of(context):
    """Return batches of a client; clients with an odd number swap the classes."""
    number = context.node_config["partition-id"]
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(number))
    return [(x, ((x[:, 0] > 0).long() + number) % 2)]


def train(net, loader):
    """Train as before: one epoch, with an optimiser that is made here."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for x, y in loader:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()


app, server = answer_identity(ClientApp()), ServerApp()


@app.train()
def fit(message, context):
    """Train the federated and the personal model."""
    method = SuPerFedLoop(build, message, context)
    method.train(lambda net, loader, epochs: train(net, loader), loader_of(context), 1)
    return method.reply({"num-examples": 64})


@app.evaluate()
def evaluate(message, context):
    """Score the mixture of both."""
    ((x, y),) = loader_of(context)
    net = SuPerFedLoop(build, message, context).model
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": 64})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    """Return the mean accuracy after 30 rounds."""
    strategy = SuPerFed(SuPerFedOptions(start=0.2))
    start = ArrayRecord(build().state_dict())
    result = strategy.start(ClientGrid(grid), start, num_rounds=30, evaluate_every=0)
    return result.evaluate_metrics_clientapp[30]["accuracy"]
