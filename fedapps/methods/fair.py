"""Fair methods, each around another one: weights by losses or updates of clients, and
the loss that PropFair's clients minimise.
"""

from dataclasses import make_dataclass

import clients
from algorithms.common.options import option
from fedapps.methods.method import Method
from strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFOptions,
    AAggFFS,
    AFLOptions,
    FedMGDA,
    FedMGDAOptions,
    PropFair,
    PropFairOptions,
    QFedAvg,
    QFedAvgOptions,
    TERMOptions,
)


def with_base(
    kind: type, help: str = "any method that averages by weight; it takes its own table"
) -> type:
    """Return an options class like ``kind`` with an additional field ``base``, the
    method to be wrapped.
    """
    return make_dataclass(
        kind.__name__, [("base", str, option("fedavg", help))], bases=(kind,), frozen=True
    )


def with_proportional_loss(kind: "type[clients.FedAvgClient]") -> "type[clients.FedAvgClient]":
    """Return the client class with PropFair's loss; PyTorch is imported on first
    use.
    """
    from clients.propfair import proportional

    return proportional(kind)


METHODS: dict[str, Method] = {
    "aaggff-s": Method(
        summary="weights of all clients decided by the online Newton step, around another method",
        paper="Hahn 2024 (AAggFF-S)",
        trait="re-weights",
        page="aaggff",
        wrap=AAggFFS,
        all_clients=True,
        options=with_base(AAggFFOptions),
        table="aaggff",
        defaults={"clients-per-round": 0},
    ),
    "aaggff-d": Method(
        summary="weights of sampled clients decided by the regularised leader, around another "
        "method",
        paper="Hahn 2024 (AAggFF-D)",
        trait="re-weights",
        page="aaggff",
        wrap=AAggFFD,
        options=with_base(AAggFFOptions),
        table="aaggff",
    ),
    "afl": Method(
        summary="weights climb the losses: the model for the worst mixture of clients",
        paper="Mohri et al. 2019",
        trait="re-weights",
        wrap=AFL,
        options=with_base(AFLOptions),
        table="afl",
    ),
    "q-fedavg": Method(
        summary="clients count by a power of their loss, the step by a Lipschitz estimate",
        paper="Li et al. 2020 (q-FFL)",
        trait="re-weights",
        page="qfedavg",
        wrap=QFedAvg,
        options=with_base(QFedAvgOptions),
        table="q-fedavg",
    ),
    "term": Method(
        summary="clients count by the exponential of their loss",
        paper="Li et al. 2021",
        trait="re-weights",
        wrap=TERM,
        options=with_base(TERMOptions),
        table="term",
    ),
    "fedmgda": Method(
        summary="shortest mixture of the clients' unit updates (FedMGDA+)",
        paper="Hu et al. 2022",
        trait="re-weights",
        wrap=FedMGDA,
        options=with_base(FedMGDAOptions),
        table="fedmgda",
    ),
    "propfair": Method(
        summary="clients minimise -log(M - loss): proportional fairness",
        paper="Zhang et al. 2022",
        trait="re-weights",
        wrap=PropFair,
        loss=with_proportional_loss,
        options=with_base(
            PropFairOptions,
            "any method whose clients train by gradients of a loss; it takes its own table",
        ),
        table="propfair",
    ),
}
