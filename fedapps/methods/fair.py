"""Fair methods, which weight clients by their losses or updates: around another method (AAggFF, AFL, TERM) or on their own."""

from dataclasses import make_dataclass

import clients
from algorithms.common.options import option
from fedapps.methods.method import Method, torch_client
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

# Methods that the wrappers can re-weight.
BASES = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad")


def with_base(kind: type) -> type:
    """Return an options class like ``kind`` with an additional field ``base``, the method to be re-weighted."""

    base = option("fedavg", "the method whose weights are decided; it takes its own table", choices=BASES)
    return make_dataclass(kind.__name__, [("base", str, base)], bases=(kind,), frozen=True)


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
        summary="weights of sampled clients decided by the regularised leader, around another method",
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
        strategy=lambda options, task, context: QFedAvg(options),
        client=torch_client(lambda: clients.FedAvgClient),
        options=QFedAvgOptions,
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
        strategy=lambda options, task, context: FedMGDA(options),
        client=torch_client(lambda: clients.FedAvgClient),
        options=FedMGDAOptions,
        table="fedmgda",
    ),
    "propfair": Method(
        summary="clients minimise -log(M - loss): proportional fairness",
        paper="Zhang et al. 2022",
        trait="re-weights",
        strategy=lambda options, task, context: PropFair(options),
        client=torch_client(lambda: clients.PropFairClient),
        options=PropFairOptions,
        table="propfair",
    ),
}
