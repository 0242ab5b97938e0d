"""FedFW in your app: a lasso, without PyTorch. Your own objective has
``num_examples``, ``value(x)`` and ``gradient(x)`` in place of ``LeastSquares``.
"""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.algorithms.frank_wolfe.objectives import LeastSquares
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball
from fedapps.clients import FedFWClient, MessageStore, to_client_app
from fedapps.clients.families.problems import ObjectiveProblem
from fedapps.strategies import ClientGrid, FedFW

DOMAIN = L1Ball((20,), radius=2.0)


def client_fn(context):
    """Return a client with 30 rows of its own, of the same two coefficients."""
    number = context.node_config["partition-id"]
    x = np.random.default_rng(number).normal(size=(30, 20))
    problem = ObjectiveProblem(LeastSquares(x, x[:, 3] - x[:, 7]))
    return FedFWClient(problem, DOMAIN, number, MessageStore(context.state))


app, server = to_client_app(client_fn), ServerApp()


@server.main()
def main(grid, context):
    """Return the coefficients (20,) after 200 rounds."""
    start = ArrayRecord({"x0": Array(DOMAIN.start())})
    strategy = FedFW(DOMAIN)
    result = strategy.start(ClientGrid(grid), start, num_rounds=200, evaluate_every=0)
    return strategy.open_model(result.arrays)
