"""FFGB in your app: trees on tables that stay where they are, without PyTorch."""

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.algorithms.boosting.trees import TreeOracle
from fedapps.clients import FFGBClient, MessageStore, to_client_app
from fedapps.clients.base.data import ArrayData, ArraySplit
from fedapps.strategies import FFGB, ClientGrid


def rows(seed):
    """Return 200 rows (200, 5) and labels 0 or 1: whether two columns agree in sign."""
    x = np.random.default_rng(seed).normal(size=(200, 5)).astype(np.float32)
    return ArraySplit(x, (x[:, 0] * x[:, 1] > 0).astype(np.int64))


def client_fn(context):
    """Return a client with rows of its own."""
    number = context.node_config["partition-id"]
    test = rows(1000 + number)
    data = ArrayData(rows(number), test, test)
    return FFGBClient(data, TreeOracle(depth=3), 1, number, MessageStore(context.state))


app, server = to_client_app(client_fn), ServerApp()


@server.main()
def main(grid, context):
    """Return the accuracy of the function after 30 rounds."""
    result = FFGB().start(ClientGrid(grid), ArrayRecord(), num_rounds=30, evaluate_every=0)
    return result.evaluate_metrics_clientapp[30]["accuracy"]
