"""Methods that average the clients' models into one: FedAvg, FedProx, SCAFFOLD, those
with a server optimiser, and FedBuff; and fair methods, which wrap another one: they
weight clients by their losses or updates, or change the loss (PropFair).
"""

from typing import Any

from fedapps import clients
from fedapps.methods.method import Method, with_base
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgOptions,
    FedBuff,
    FedMDFG,
    FedMGDA,
    FedProx,
    FedYogi,
    PropFair,
    PropFairOptions,
    QFedAvg,
    Scaffold,
)
from fedapps.tasks.context import RunContext


def fedavg(options: FedAvgOptions, task: Any, context: RunContext) -> FedAvg:
    """Return the FedAvg strategy with the chosen weights."""
    return FedAvg(weights=options.weights)


def with_proportional_loss(kind: "type[clients.FedAvgClient]") -> "type[clients.FedAvgClient]":
    """Return the client class with PropFair's loss; PyTorch is imported on first
    use.
    """
    from fedapps.clients.propfair import proportional

    return proportional(kind)


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
    "aaggff-s": Method(
        summary="weights of all clients decided by the online Newton step, around another method",
        paper="Hahn 2024 (AAggFF-S)",
        trait="re-weights",
        wrap=AAggFFS,
        all_clients=True,
        defaults={"clients-per-round": 0},
    ),
    "aaggff-d": Method(
        summary="weights of sampled clients decided by the regularised leader, around another "
        "method",
        paper="Hahn 2024 (AAggFF-D)",
        trait="re-weights",
        wrap=AAggFFD,
    ),
    "afl": Method(
        summary="weights ascend the losses: the model for the worst mixture of clients",
        paper="Mohri et al. 2019",
        trait="re-weights",
        wrap=AFL,
    ),
    "q-fedavg": Method(
        summary="weights clients by a power of their loss; step size from a Lipschitz estimate",
        paper="Li et al. 2020 (q-FFL)",
        trait="re-weights",
        page="qfedavg",
        wrap=QFedAvg,
        table="q-fedavg",
    ),
    "term": Method(
        summary="weights clients by the exponential of their loss",
        paper="Li et al. 2021",
        trait="re-weights",
        wrap=TERM,
    ),
    "fedmgda": Method(
        summary="shortest mixture of the clients' unit updates (FedMGDA+)",
        paper="Hu et al. 2022",
        trait="re-weights",
        wrap=FedMGDA,
    ),
    "fedmdfg": Method(
        summary="a step along which every client's loss falls and losses come closer",
        paper="Pan et al. 2023",
        trait="one global model",
        strategy=FedMDFG,
        client="FedMDFGClient",
        page="fedmgda",
    ),
    "propfair": Method(
        summary="clients minimise -log(M - loss): proportional fairness",
        paper="Zhang et al. 2022",
        trait="re-weights",
        wrap=PropFair,
        loss=with_proportional_loss,
        options=with_base(
            PropFairOptions,
            "any method whose clients train by gradients of a loss; its settings are in its own "
            "table",
        ),
    ),
}
