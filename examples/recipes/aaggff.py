"""AAggFF around Flower's FedAvg: the client adds one metric, ``loss-before``."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedapps.clients import to_client_app
from fedapps.strategies import AAggFFS, ClientGrid, run_rounds


class Mean(NumPyClient):
    """Wants the model to be a number of its own: 0, 0, 0, ... and 1 for the last."""

    def __init__(self, wanted):
        self.wanted = wanted

    def fit(self, parameters, config):
        """Take a step to it; report the loss of the model as it came."""
        (w,) = parameters
        return (
            [w + 0.5 * (self.wanted - w)],
            1,
            {"loss-before": float((w - self.wanted) @ (w - self.wanted))},
        )

    def evaluate(self, parameters, config):
        """Score the model."""
        return float(np.sum((parameters[0] - self.wanted) ** 2)), 1, {}


def client_fn(context):
    """Return a client."""
    last = context.node_config["num-partitions"] - 1
    return Mean(float(context.node_config["partition-id"] == last))


app, server = to_client_app(client_fn), ServerApp()


@server.main()
def main(grid, context):
    """Return the model (1,) after 50 rounds."""
    start = ArrayRecord({"w": Array(np.zeros(1))})
    result = run_rounds(AAggFFS(FedAvg()), ClientGrid(grid), start, 50)
    return result.arrays["w"].numpy()
