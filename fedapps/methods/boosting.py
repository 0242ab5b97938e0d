"""Sums of weak learners: FFGB and its forms."""

from collections.abc import Callable
from typing import Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from clients import FFGBClient
from clients.base.store import Store
from fedapps.methods.method import Method
from fedapps.tasks.boosting_oracles import check_learner, oracle_of
from strategies import FFGB, FFGBOptions

BOOSTED_TASKS = ("classification", "digits", "tabular")


def boosting(variant: str) -> Callable[[Any, Any, int], Strategy]:
    """Return a factory of the server half of a form of FFGB."""

    def build(options: FFGBOptions, task: Any, seed: int) -> Strategy:
        check_learner(options, variant)
        rounds = task.settings.num_rounds
        if options.at_once and rounds > 1:
            raise ValueError(f"at-once = {options.at_once}, num-rounds = {rounds}: there is one round, set num-rounds = 1")
        return FFGB(options, variant)

    return build


def boosting_client(variant: str) -> Callable[[Any, int | str, int, Store], NumPyClient]:
    """Return a factory of clients that fit the weak learners of a form of FFGB."""

    def build(task: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        data, oracle = task.client_data(client_id, num_clients), oracle_of(task, task.settings.options, variant)
        return FFGBClient(data, oracle, task.num_outputs, client_id, store, task.objective)

    return build


METHODS: dict[str, Method] = {
    "ffgb": Method(
        summary="functional gradient boosting: clients add weak learners fitted to their gradients",
        paper="Shen et al. 2022",
        trait="boosts",
        strategy=boosting("ffgb"),
        client=boosting_client("ffgb"),
        options=FFGBOptions,
        table="ffgb",
        tasks=BOOSTED_TASKS,
    ),
    "ffgb-c": Method(
        summary="FFGB with everything clipped: for features that differ between clients",
        paper="Shen et al. 2021 (FFGB.C)",
        trait="boosts",
        strategy=boosting("ffgb-c"),
        client=boosting_client("ffgb-c"),
        options=FFGBOptions,
        table="ffgb",
        tasks=BOOSTED_TASKS,
    ),
    "ffgb-l": Method(
        summary="FFGB for the square loss over Lipschitz functions; can be done in one round",
        paper="Shen et al. 2021 (FFGB.L)",
        trait="boosts",
        strategy=boosting("ffgb-l"),
        client=boosting_client("ffgb-l"),
        options=FFGBOptions,
        table="ffgb",
        tasks=BOOSTED_TASKS,
    ),
}
