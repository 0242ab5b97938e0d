"""Personalised methods, in which every client has its own model: SuPerFed and the baselines of its paper."""

from typing import Any

from flwr.serverapp.strategy import Strategy

import clients
from fedapps.errors import UserError
from fedapps.methods.method import Method, StrategyFactory, TorchClient
from fedapps.tasks.context import RunContext
from strategies import (
    APFL,
    APFLOptions,
    Ditto,
    DittoOptions,
    FedRep,
    FedRepOptions,
    Local,
    PartialSharing,
    PFedMe,
    PFedMeOptions,
    SuPerFed,
    SuPerFedOptions,
)


def sharing(share: str) -> StrategyFactory:
    """Return a factory of the strategy that shares one part of the task's model: "body" or "head"."""

    def build(options: FedRepOptions | None, task: Any, context: RunContext) -> Strategy:
        model = task.work_model()
        strategy = FedRep(model.head, options) if options else PartialSharing(model.head, share)
        try:
            strategy.check(list(model.state_dict()))
        except ValueError as error:
            raise UserError(f"model.name = {context.model.name!r}: {error}") from None
        return strategy

    return build


def pfedme(options: PFedMeOptions, task: Any, context: RunContext) -> Strategy:
    """Return the pFedMe strategy. Raises ``UserError`` if lambda times the rate exceeds 1, so that w_i would overshoot theta_i."""
    rate = options.rate or context.train.learning_rate
    if options.lambda_ * rate > 1:
        raise UserError(
            f"pfedme.lambda = {options.lambda_:g}, but the rate is {rate:g}: their product must be at most 1: choose "
            f"pfedme.rate = {1 / options.lambda_:.3g} or less"
        )
    return PFedMe(options)


METHODS: dict[str, Method] = {
    "local": Method(
        summary="no federation: every client trains alone",
        paper="baseline",
        trait="personalises",
        strategy=lambda options, task, context: Local(),
        client=TorchClient(lambda: clients.LocalClient),
    ),
    "superfed-mm": Method(
        summary="federated and personal model mixed at random, one weight a model",
        paper="Hahn et al. 2022 (SuPerFed-MM)",
        trait="personalises",
        page="superfed",
        strategy=lambda options, task, context: SuPerFed(options, mixing="model"),
        client=TorchClient(lambda: clients.SuPerFedClient),
        options=SuPerFedOptions,
        table="superfed",
    ),
    "superfed-lm": Method(
        summary="federated and personal model mixed at random, one weight a layer",
        paper="Hahn et al. 2022 (SuPerFed-LM)",
        trait="personalises",
        page="superfed",
        strategy=lambda options, task, context: SuPerFed(options, mixing="layer"),
        client=TorchClient(lambda: clients.SuPerFedClient),
        options=SuPerFedOptions,
        table="superfed",
    ),
    "fedper": Method(
        summary="averages the body of the model; every client keeps its own head",
        paper="Arivazhagan et al. 2019",
        trait="personalises",
        page="partial-sharing",
        strategy=sharing("body"),
        client=TorchClient(lambda: clients.PartialClient),
    ),
    "lg-fedavg": Method(
        summary="averages the head of the model; every client keeps its own body",
        paper="Liang et al. 2020",
        trait="personalises",
        page="partial-sharing",
        strategy=sharing("head"),
        client=TorchClient(lambda: clients.PartialClient),
    ),
    "fedrep": Method(
        summary="FedPer whose clients first fit their head, then the body",
        paper="Collins et al. 2021",
        trait="personalises",
        page="partial-sharing",
        strategy=sharing("body"),
        client=TorchClient(lambda: clients.FedRepClient),
        options=FedRepOptions,
        table="fedrep",
    ),
    "apfl": Method(
        summary="a mixture of the global model and the client's own, its weight fixed or learned",
        paper="Deng, Kamani, Mahdavi 2020",
        trait="personalises",
        page="personal-models",
        strategy=lambda options, task, context: APFL(options),
        client=TorchClient(lambda: clients.APFLClient),
        options=APFLOptions,
        table="apfl",
    ),
    "pfedme": Method(
        summary="personal models near the global one, which descends their Moreau envelopes",
        paper="Dinh, Tran, Nguyen 2020",
        trait="personalises",
        page="personal-models",
        strategy=pfedme,
        client=TorchClient(lambda: clients.PFedMeClient),
        options=PFedMeOptions,
        table="pfedme",
    ),
    "ditto": Method(
        summary="FedAvg, and beside it a personal model that is pulled to the global one",
        paper="Li et al. 2021",
        trait="personalises",
        page="personal-models",
        strategy=lambda options, task, context: Ditto(options),
        client=TorchClient(lambda: clients.DittoClient),
        options=DittoOptions,
        table="ditto",
    ),
}
