"""Fair methods, which wrap another method: they weight clients by their losses or
updates, or change the loss (PropFair).
"""

from fedapps import clients
from fedapps.methods.method import Method, with_base
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    FedMGDA,
    PropFair,
    PropFairOptions,
    QFedAvg,
)


def with_proportional_loss(kind: "type[clients.FedAvgClient]") -> "type[clients.FedAvgClient]":
    """Return the client class with PropFair's loss; PyTorch is imported on first
    use.
    """
    from fedapps.clients.propfair import proportional

    return proportional(kind)


METHODS: dict[str, Method] = {
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
