"""SuPerFed with your torch model and your data: a personal model for every client, and
a federated one.
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

from fedapps.clients import (
    ClientData,
    MessageStore,
    Split,
    SuPerFedClient,
    TrainOptions,
    to_client_app,
)
from fedapps.strategies import ClientGrid, SuPerFed, SuPerFedOptions
from own_project.client_app import digits_of


def build_model(seed):
    """Return a freshly initialised model; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )


def client_fn(context):
    """Return a client with 60 % of its digits to train on, 20 % to choose lambda with,
    20 % to be scored on.
    """
    x, y = (torch.from_numpy(values) for values in digits_of(context))
    cuts = (len(y) * 6 // 10, len(y) * 8 // 10)
    parts = zip(x.float().tensor_split(cuts), y.tensor_split(cuts), strict=True)
    data = ClientData(*(Split(x, y) for x, y in parts))
    return SuPerFedClient(
        build_model, data, context.node_config["partition-id"], MessageStore(context.state)
    )


client_app = to_client_app(client_fn)
server_app = ServerApp()


@server_app.main()
def main(grid, context):
    """Train federated and personal models; the clients' options of training travel in
    ``train_config``.
    """
    client_grid = ClientGrid(grid, seed=0, clients_per_round=5)
    strategy = SuPerFed(SuPerFedOptions(mu=0.01, nu=1.0, start=0.4), mixing="model")
    options = TrainOptions(learning_rate=0.05, local_epochs=5)
    result = strategy.start(
        client_grid,
        ArrayRecord(build_model(0).state_dict()),
        num_rounds=context.run_config["num-rounds"],
        train_config=ConfigRecord(options.to_config()),
        evaluate_every=10,
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(
            f"round {server_round}: accuracy {metrics['accuracy']:.3f}, global model "
            f"{metrics['global-accuracy']:.3f}"
        )
