"""Functional gradient boosting: FFGB and its variants."""

from dataclasses import replace
from typing import Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedapps import clients
from fedapps.errors import refuse_first
from fedapps.methods.method import ClientFactory, Method, StrategyFactory
from fedapps.strategies import FFGB, FFGBOptions
from fedapps.strategies.histogram_boosting import HistogramBoosting, HistogramBoostingOptions
from fedapps.strategies.local_boosting import LocalBoosting, LocalBoostingOptions
from fedapps.strategies.site_boosting import SiteBoosting
from fedapps.tasks.capabilities import HasTable, PredictsNumbers
from fedapps.tasks.context import RunContext

BOOSTED_TASKS = ("classification", "digits", "tabular")


def boosting(variant: str) -> StrategyFactory:
    """Return a factory of the strategy of a variant of FFGB."""

    def build(options: FFGBOptions, task: Any, context: RunContext) -> Strategy:
        from fedapps.tasks.boosting_oracles import check_learner, learner_of, oracle_of

        check_learner(options, variant)
        if (learner := learner_of(task, options)) == "net":
            oracle_of(task, options, variant)  # raises if the net cannot be one
        options = replace(options, learner=learner)
        rounds = context.num_rounds
        if options.at_once and rounds > 1:
            raise ValueError(
                f"at-once = {options.at_once}, num-rounds = {rounds}: at-once takes one round: set "
                "num-rounds = 1"
            )
        return FFGB(options, variant)

    return build


def boosting_client(variant: str) -> ClientFactory:
    """Return a factory of clients that fit the weak learners of a variant of FFGB."""

    def build(
        options: FFGBOptions,
        task: Any,
        client_id: int | str,
        num_clients: int,
        store: "clients.Store",
    ) -> NumPyClient:
        from fedapps.tasks.boosting_oracles import learner_of, oracle_of

        oracle, outputs = oracle_of(task, options, variant), task.num_outputs
        # Trees on a table need no PyTorch, but the clients of FFGB.L check the
        # Lipschitz constant, which needs it.
        if (
            learner_of(task, options) == "trees"
            and isinstance(task, HasTable)
            and variant != "ffgb-l"
        ):
            return clients.FFGBClient(
                task.arrays(client_id, num_clients), oracle, outputs, client_id, store
            )
        data = task.client_data(client_id, num_clients)
        return clients.FFGBClient(data, oracle, outputs, client_id, store, task.objective)

    return build


def table_of(task: Any, method: str) -> tuple[bool, int]:
    """Return whether a table has numbers to predict, and the outputs of its trees.
    Raises ``UserError`` if the task has no table, or several numbers.
    """
    numbers, outputs = isinstance(task, PredictsNumbers), task.num_outputs
    refuse_first(
        (
            not isinstance(task, HasTable),
            f"method = '{method}': needs a table: name one in data.source",
        ),
        (
            numbers and outputs > 1,
            f"method = '{method}': predicts one number, but data.label names {outputs}: name one",
        ),
    )
    return numbers, 1 if numbers else outputs


def histogram_strategy(kind: type[HistogramBoosting], name: str) -> StrategyFactory:
    """Return a factory of a kind of histogram boosting for the features of a table."""

    def build(options: HistogramBoostingOptions, task: Any, context: RunContext) -> Strategy:
        numbers, outputs = table_of(task, name)
        return kind(task.num_features, options, numbers, outputs)

    return build


def rows_of(
    task: Any, client_id: int | str, num_clients: int, standardise: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Return a client's rows and, of numbers to predict, deviation and mean of the
    targets, which are then standardised.
    """
    data = task.arrays(client_id, num_clients, standardise)
    if not isinstance(task, PredictsNumbers):
        return data, {}
    found = task.target_scale
    units = {"scale": float(found.scale[0]), "center": float(found.center[0])}
    return found.of_data(data), units


def histogram_client(
    options: HistogramBoostingOptions,
    task: Any,
    client_id: int | str,
    num_clients: int,
    store: "clients.Store",
) -> NumPyClient:
    """Return a client of histogram boosting."""
    data, units = rows_of(task, client_id, num_clients, options.standardise)
    more = {"outputs": task.num_outputs, "min_cell": options.min_cell}
    return clients.HistogramBoostingClient(data, client_id, store, **more, **units)


def local_client(
    options: LocalBoostingOptions,
    task: Any,
    client_id: int | str,
    num_clients: int,
    store: "clients.Store",
) -> NumPyClient:
    """Return a client of local boosting."""
    data, units = rows_of(task, client_id, num_clients)
    return clients.LocalBoostingClient(data, client_id, store, outputs=task.num_outputs, **units)


METHODS: dict[str, Method] = {
    "ffgb": Method(
        summary="functional gradient boosting: clients add weak learners fitted to their gradients",
        paper="Shen et al. 2022",
        trait="boosts",
        builds=FFGB,
        strategy=boosting("ffgb"),
        client=boosting_client("ffgb"),
        tasks=BOOSTED_TASKS,
    ),
    "ffgb-c": Method(
        summary="FFGB with everything clipped: for features that differ between clients",
        paper="Shen et al. 2021 (FFGB.C)",
        trait="boosts",
        builds=FFGB,
        strategy=boosting("ffgb-c"),
        client=boosting_client("ffgb-c"),
        tasks=BOOSTED_TASKS,
    ),
    "ffgb-l": Method(
        summary="FFGB for the square loss over Lipschitz functions; can be done in one round",
        paper="Shen et al. 2021 (FFGB.L)",
        trait="boosts",
        builds=FFGB,
        strategy=boosting("ffgb-l"),
        client=boosting_client("ffgb-l"),
        tasks=BOOSTED_TASKS,
    ),
    "histogram-boosting": Method(
        summary="gradient boosted trees for tables, grown from sums over all clients: the same "
        "trees as from pooled rows",
        paper="Chen and Guestrin 2016; Ong et al. 2020",
        trait="boosts",
        builds=HistogramBoosting,
        strategy=histogram_strategy(HistogramBoosting, "histogram-boosting"),
        client=histogram_client,
        tasks=("tabular", "regression"),
        validates=True,
        defaults={"num-rounds": 152, "evaluate-every": 10},
    ),
    "site-boosting": Method(
        summary="histogram boosting whose trees may also split by site: each has its own way "
        "through them",
        paper="Khellaf et al. 2026 (FedForest), in boosting",
        trait="boosts",
        builds=SiteBoosting,
        strategy=histogram_strategy(SiteBoosting, "site-boosting"),
        client=histogram_client,
        tasks=("tabular", "regression"),
        table="histogram-boosting",
        validates=True,
        defaults={"num-rounds": 152, "evaluate-every": 10},
    ),
    "local-boosting": Method(
        summary="no federation: every client grows boosted trees from its own table",
        paper="baseline",
        trait="boosts",
        builds=LocalBoosting,
        page="histogram-boosting",
        strategy=lambda options, task, context: LocalBoosting(
            options, table_of(task, "local-boosting")[0]
        ),
        client=local_client,
        tasks=("tabular", "regression"),
        defaults={"num-rounds": 152, "evaluate-every": 10},
    ),
}
