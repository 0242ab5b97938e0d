"""Methods for constrained problems: federated Frank-Wolfe and projected FedAvg."""

from typing import Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedapps import clients
from fedapps.methods.method import ClientFactory, Method, StrategyFactory
from fedapps.strategies import FedFW, FedFWOptions, ProjectedFedAvg
from fedapps.strategies.dfw_trace import DFWTrace
from fedapps.tasks.context import RunContext

CONSTRAINED_TASKS = (
    "lasso",
    "sparse-logistic",
    "matrix-completion",
    "qap",
    "constrained-classification",
)


CONSTRAINED_JOB: dict[str, bool | int | float | str] = {
    "num-clients": 10,
    "clients-per-round": 0,
    "num-rounds": 300,
    "evaluate-every": 20,
    "checkpoint-every": 50,
    "data.partition": "iid",
}


def constrained_client(kind: str) -> ClientFactory:
    """Return a factory of clients of class ``kind`` with the task's f_i and domain."""

    def build(
        options: Any, task: Any, client_id: int | str, num_clients: int, store: "clients.Store"
    ) -> NumPyClient:
        problem = task.problem(client_id, num_clients)
        made: NumPyClient = getattr(clients, kind)(problem, task.domain, client_id, store)
        return made

    return build


def parts(task: Any) -> dict[str, Any]:
    """Return the arguments that every strategy takes from a constrained task, besides
    the domain.
    """
    return {"measure": task.measure, "preparation": task.preparation()}


def frank_wolfe(variant: str) -> StrategyFactory:
    """Return a factory of the strategy of a FedFW variant; the task supplies defaults
    for the options.
    """

    def build(options: FedFWOptions, task: Any, context: RunContext) -> Strategy:
        penalty = {"lambda_0": task.lambda_0[variant == "fedfw-plus"], "curvature": task.curvature}
        return FedFW(task.domain, options, variant, **penalty, **parts(task))

    return build


METHODS: dict[str, Method] = {
    "fedfw": Method(
        summary="federated Frank-Wolfe: constraints without projections, clients send a few "
        "numbers",
        paper="Dadras, Prakhya, Yurtsever 2022",
        trait="constrains",
        builds=FedFW,
        strategy=frank_wolfe("fedfw"),
        client=constrained_client("FedFWClient"),
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "fedfw-plus": Method(
        summary="FedFW with dual variables: closer to consensus, faster",
        paper="Dadras, Prakhya, Yurtsever 2022 (FedFW+)",
        trait="constrains",
        builds=FedFW,
        strategy=frank_wolfe("fedfw-plus"),
        client=constrained_client("FedFWClient"),
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "dfw-trace": Method(
        summary="Frank-Wolfe for low-rank matrices by power iterations over the clients: one "
        "vector each, only sums are needed",
        paper="Zheng, Bellet, Gallinari 2018",
        trait="constrains",
        page="fedfw",
        builds=DFWTrace,
        strategy=lambda options, task, context: DFWTrace(task.domain, options, **parts(task)),
        client=constrained_client("DFWTraceClient"),
        tasks=("matrix-completion",),
        defaults=CONSTRAINED_JOB,
    ),
    "naive-fw": Method(
        summary="local Frank-Wolfe steps, averaged: a baseline that fails",
        paper="Dadras, Prakhya, Yurtsever 2022 (equation 3)",
        trait="constrains",
        builds=FedFW,
        strategy=frank_wolfe("naive-fw"),
        client=constrained_client("FedFWClient"),
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "projected-fedavg": Method(
        summary="FedAvg with a projection onto the constraint after every step",
        paper="baseline",
        trait="constrains",
        page="fedfw",
        builds=ProjectedFedAvg,
        strategy=lambda options, task, context: ProjectedFedAvg(
            task.domain, options, learning_rate=task.learning_rate, **parts(task)
        ),
        client=constrained_client("ProjectedClient"),
        table="projected",
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
}
