"""SCAFFOLD where only a head travels: the backbone stays at the client, frozen, as with
adapters of a language model. The loop's module is the head; your function joins both.
"""

import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedapps.clients import ScaffoldLoop, answer_identity
from fedapps.strategies import ClientGrid, Scaffold

torch.manual_seed(0)
BACKBONE = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh()).requires_grad_(False)


def head():
    """Return what travels."""
    return torch.nn.Linear(16, 2)


def train(net, loader, epochs):
    """Train as before."""
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()


app, server = answer_identity(ClientApp()), ServerApp()


@app.train()
def fit(message, context):
    """Train the head on top of the backbone."""
    seed = context.node_config["partition-id"]
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    method = ScaffoldLoop(head, message, context)
    method.train(
        lambda part, loader, epochs: train(torch.nn.Sequential(BACKBONE, part), loader, epochs),
        [(x, (x[:, 0] > 0).long())],
        5,
    )
    return method.reply({"num-examples": 64})


@server.main()
def main(grid, context):
    """Return the accuracy of the head on new samples after 20 rounds."""
    strategy = Scaffold(fraction_evaluate=0.0)
    result = strategy.start(ClientGrid(grid), ArrayRecord(head().state_dict()), num_rounds=20)
    part, x = head(), torch.randn(500, 4)
    part.load_state_dict(result.arrays.to_torch_state_dict())
    return (part(BACKBONE(x)).argmax(1) == (x[:, 0] > 0)).float().mean().item()
