"""FedBoost in your app: the best mixture of models that the server has, without
PyTorch. Here they are densities over four outcomes, one per row of ``TABLE``.
"""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.clients import FedBoostClient, to_client_app
from fedapps.strategies import ClientGrid, FedBoost, FedBoostOptions

TABLE = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]])


class Library:
    """The models of the server."""

    q = len(TABLE)

    def take(self, ids):
        """Return the arrays of some models, stacked."""
        return {"table": TABLE[ids]}

    def hash_of(self, predictor):
        """Return what names a model's content."""
        return f"{predictor:016x}"

    def mixture(self, alpha):
        """Return the mixture as one model."""
        return {"table": alpha @ TABLE}


class Outcomes:
    """A client's outcomes, as frequencies (4,); the loss is the log loss."""

    num_examples = num_test = 100

    def __init__(self, frequencies):
        self.frequencies = frequencies

    def loss_and_gradient(self, predictors, alpha):
        """Return loss, gradient (h,) and squared norms (h,) for h models."""
        table, mixed = predictors["table"], alpha @ predictors["table"]
        gradient = -(table * (self.frequencies / mixed)).sum(1)
        return -float(self.frequencies @ np.log(mixed)), gradient, (table**2).sum(1)

    def score(self, predictors, alpha):
        """Return the loss of a mixture."""
        return {"loss": self.loss_and_gradient(predictors, alpha)[0]}


def client_fn(context):
    """Return a client; half of them see the first outcome, half the last."""
    return FedBoostClient(Outcomes(TABLE[2 * (context.node_config["partition-id"] % 2)]))


app, server = to_client_app(client_fn), ServerApp()


@server.main()
def main(grid, context):
    """Return the weights of the models (3,) after 100 rounds."""
    strategy = FedBoost(Library(), FedBoostOptions(budget=3, sampling="none", step=0.2))
    start = ArrayRecord({"alpha": Array(np.full(3, 1 / 3))})
    strategy.start(ClientGrid(grid), start, num_rounds=100, evaluate_every=0)
    return strategy.alpha
