"""Methods that learn to combine an ensemble of pre-trained predictors: FedBoost and
AFLBoost learn weights, FENS a net.
"""

from typing import Any

from flwr.client import NumPyClient

from fedapps import clients
from fedapps.algorithms.common.options import kebab
from fedapps.errors import UserError
from fedapps.methods.method import Method
from fedapps.notes import logger
from fedapps.strategies import FENS, AFLBoost, FedBoost, FedBoostOptions, FENSOptions
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import EnsembleOptions
from fedapps.tasks.predictor_library import Library

ENSEMBLE_TASKS = ("point-mass", "unigram", "ensemble-classification")


ENSEMBLE_JOB = {
    "num-clients": 100,
    "clients-per-round": 0,
    "num-rounds": 200,
    "evaluate-every": 20,
    "checkpoint-every": 100,
}


def ensemble_client(
    options: Any, task: Any, client_id: int | str, num_clients: int, store: "clients.Store"
) -> NumPyClient:
    """Return a client that evaluates ensembles on its samples."""
    return clients.FedBoostClient(task.client_data(client_id, num_clients), store)


def library_of(task: Any, options: FedBoostOptions) -> Any:
    """Return the predictor library of the task or of a folder, or a function that
    builds one from the clients' predictors.
    """
    if options.library == "clients":
        return Library.from_arrays
    if options.library == "task":
        return task.library()
    library = Library.open(options.library, from_clients=not options.public_library)
    task.check_library(library)
    return library


def fens(options: FENSOptions, task: Any, context: RunContext) -> FENS:
    """Return the FENS strategy. Raises ``UserError`` for options of the task that say
    how the server trains predictors, or weighs them.
    """
    share = task.options.share
    used = EnsembleOptions(share=share, epochs=task.options.epochs)
    for name, value in vars(task.options).items():
        if value != (usual := getattr(used, name)):
            raise UserError(
                f"ensemble.{kebab(name)} = {value!r}: method = 'fens' does not use it, its clients "
                f"train one predictor each: leave it {usual!r}"
            )
    if share:
        logger.warning(
            "ensemble.share = %g: this part of the samples trains nothing: set it to 0", share
        )
    return FENS(task.rest.num_outputs, options, context.seed)


def fens_client(
    options: Any, task: Any, client_id: int | str, num_clients: int, store: "clients.Store"
) -> NumPyClient:
    """Return a client of FENS; it trains its predictor as the task trains those of the
    server.
    """
    data = task.client_data(client_id, num_clients)
    return clients.FENSClient(data, task.training, client_id, store)


METHODS: dict[str, Method] = {
    "fedboost": Method(
        summary="weights of an ensemble of pre-trained predictors, a few of them sent per round",
        paper="Hamer, Mohri, Suresh 2020",
        trait="boosts",
        builds=FedBoost,
        strategy=lambda options, task, context: FedBoost(
            library_of(task, options), options, context.seed, task.options.loss
        ),
        client=ensemble_client,
        tasks=ENSEMBLE_TASKS,
        defaults=ENSEMBLE_JOB,
    ),
    "aflboost": Method(
        summary="FedBoost for the worst client: weights of clients rise with their losses",
        paper="Hamer, Mohri, Suresh 2020",
        trait="boosts, re-weights",
        page="fedboost",
        builds=AFLBoost,
        strategy=lambda options, task, context: AFLBoost(
            library_of(task, options), options, context.seed, task.options.loss
        ),
        client=ensemble_client,
        tasks=ENSEMBLE_TASKS,
        defaults=ENSEMBLE_JOB,
    ),
    "fens": Method(
        summary="clients train a predictor each; a small net on the outputs of all is averaged",
        paper="Allouah et al. 2024",
        trait="boosts",
        page="fedboost",
        builds=FENS,
        strategy=fens,
        client=fens_client,
        tasks=("ensemble-classification",),
        defaults={"clients-per-round": 0, "ensemble.share": 0.0},
    ),
}
