"""Methods that average the clients' models into one: FedAvg, FedProx, SCAFFOLD, those
with a server optimiser, and FedBuff.
"""

from typing import Any

from fedapps.methods.method import Method
from fedapps.strategies import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgOptions,
    FedBuff,
    FedProx,
    FedYogi,
    Scaffold,
)
from fedapps.tasks.context import RunContext


def fedavg(options: FedAvgOptions, task: Any, context: RunContext) -> FedAvg:
    """Return the FedAvg strategy with the chosen weights."""
    return FedAvg(weights=options.weights)


METHODS: dict[str, Method] = {
    "fedavg": Method(
        summary="weighted average of the clients' models",
        paper="McMahan et al. 2017",
        trait="one global model",
        builds=FedAvg,
        strategy=fedavg,
        client="FedAvgClient",
        options=FedAvgOptions,
        table="fedavg",
    ),
    "fedbuff": Method(
        summary="asynchronous rounds: the model changes whenever some clients have replied",
        paper="Nguyen et al. 2022; FedAsync: Xie et al. 2019",
        trait="one global model",
        wrap=FedBuff,
    ),
    "fedprox": Method(
        summary="FedAvg with a squared proximal term that keeps clients near the global model",
        paper="Li et al. 2020",
        trait="one global model",
        strategy=FedProx,
        client="FedProxClient",
    ),
    "scaffold": Method(
        summary="control variates take the drift out of the clients' steps",
        paper="Karimireddy et al. 2020",
        trait="one global model",
        strategy=Scaffold,
        client="ScaffoldClient",
    ),
    "fedadam": Method(
        summary="the server takes the mean update as a gradient for Adam",
        paper="Reddi et al. 2021",
        trait="one global model",
        strategy=FedAdam,
        client="FedAvgClient",
    ),
    "fedyogi": Method(
        summary="the same for Yogi",
        paper="Reddi et al. 2021",
        trait="one global model",
        strategy=FedYogi,
        client="FedAvgClient",
    ),
    "fedadagrad": Method(
        summary="the same for Adagrad",
        paper="Reddi et al. 2021",
        trait="one global model",
        strategy=FedAdagrad,
        client="FedAvgClient",
    ),
}
