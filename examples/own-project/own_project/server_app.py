"""Your server: a strategy of fedapps instead of one of Flower's."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.strategies import ClientGrid, FedProx, FedProxOptions

app = ServerApp()


@app.main()
def main(grid, context):
    """Train softmax regression on the digits."""
    client_grid = ClientGrid(grid, seed=0, clients_per_round=5)
    start = ArrayRecord({"weights": Array(np.zeros((64, 10)))})
    strategy = FedProx(FedProxOptions(mu=0.1))
    result = strategy.start(
        client_grid, start, num_rounds=context.run_config["num-rounds"], evaluate_every=10
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['accuracy']:.3f}")
