"""Methods that average the clients' models into one: FedAvg, FedProx, SCAFFOLD and
those with a server optimiser.
"""

import clients
from fedapps.methods.method import Method, TorchClient
from strategies import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgOptions,
    FedOptOptions,
    FedProx,
    FedProxOptions,
    FedYogi,
    Scaffold,
    ScaffoldOptions,
)

METHODS: dict[str, Method] = {
    "fedavg": Method(
        summary="weighted average of the clients' models",
        paper="McMahan et al. 2017",
        trait="one global model",
        strategy=lambda options, task, context: FedAvg(weights=options.weights),
        client=TorchClient(lambda: clients.FedAvgClient),
        options=FedAvgOptions,
        table="fedavg",
    ),
    "fedprox": Method(
        summary="FedAvg with a squared proximal term that keeps clients near the global model",
        paper="Li et al. 2020",
        trait="one global model",
        strategy=lambda options, task, context: FedProx(options),
        client=TorchClient(lambda: clients.FedProxClient),
        options=FedProxOptions,
        table="fedprox",
    ),
    "scaffold": Method(
        summary="control variates take the drift out of the clients' steps",
        paper="Karimireddy et al. 2020",
        trait="one global model",
        strategy=lambda options, task, context: Scaffold(options),
        client=TorchClient(lambda: clients.ScaffoldClient),
        options=ScaffoldOptions,
        table="scaffold",
    ),
    "fedadam": Method(
        summary="the server takes the mean update as a gradient for Adam",
        paper="Reddi et al. 2021",
        trait="one global model",
        page="fedopt",
        strategy=lambda options, task, context: FedAdam(options),
        client=TorchClient(lambda: clients.FedAvgClient),
        options=FedOptOptions,
        table="fedopt",
    ),
    "fedyogi": Method(
        summary="the same for Yogi",
        paper="Reddi et al. 2021",
        trait="one global model",
        page="fedopt",
        strategy=lambda options, task, context: FedYogi(options),
        client=TorchClient(lambda: clients.FedAvgClient),
        options=FedOptOptions,
        table="fedopt",
    ),
    "fedadagrad": Method(
        summary="the same for Adagrad",
        paper="Reddi et al. 2021",
        trait="one global model",
        page="fedopt",
        strategy=lambda options, task, context: FedAdagrad(options),
        client=TorchClient(lambda: clients.FedAvgClient),
        options=FedOptOptions,
        table="fedopt",
    ),
}
