"""Methods after which every client has a model of its own: SuPerFed and what its chapter compares it with."""

from collections.abc import Callable
from typing import Any

from flwr.serverapp.strategy import Strategy

from clients import APFLClient, DittoClient, FedRepClient, LocalClient, PartialClient, PFedMeClient, SuPerFedClient
from fedapps.errors import UserError
from fedapps.methods.method import Method, torch_client
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


def sharing(share: str) -> Callable[[Any, Any, int], Strategy]:
    """Return a factory of the server half that shares one part of the task's model: "body" or "head"."""

    def build(options: FedRepOptions | None, task: Any, seed: int) -> Strategy:
        model = task.work_model()
        strategy = FedRep(model.head, options) if options else PartialSharing(model.head, share)
        try:
            strategy.check(list(model.state_dict()))
        except ValueError as error:
            raise UserError(f"model.name = {task.settings.model.name!r}: {error}") from None
        return strategy

    return build


def pfedme(options: PFedMeOptions, task: Any, seed: int) -> Strategy:
    """Return the server half of pFedMe. Raises ``UserError`` where the step of w_i would go beyond theta_i."""
    rate = options.rate or task.settings.train.learning_rate
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
        strategy=lambda options, task, seed: Local(),
        client=torch_client(LocalClient),
    ),
    "superfed-mm": Method(
        summary="federated and personal model mixed at random, one weight a model",
        paper="Hahn et al. 2022 (SuPerFed-MM)",
        trait="personalises",
        strategy=lambda options, task, seed: SuPerFed(options, mixing="model"),
        client=torch_client(SuPerFedClient),
        options=SuPerFedOptions,
        table="superfed",
    ),
    "superfed-lm": Method(
        summary="federated and personal model mixed at random, one weight a layer",
        paper="Hahn et al. 2022 (SuPerFed-LM)",
        trait="personalises",
        strategy=lambda options, task, seed: SuPerFed(options, mixing="layer"),
        client=torch_client(SuPerFedClient),
        options=SuPerFedOptions,
        table="superfed",
    ),
    "fedper": Method(
        summary="averages the body of the model; every client keeps its own head",
        paper="Arivazhagan et al. 2019",
        trait="personalises",
        strategy=sharing("body"),
        client=torch_client(PartialClient),
    ),
    "lg-fedavg": Method(
        summary="averages the head of the model; every client keeps its own body",
        paper="Liang et al. 2020",
        trait="personalises",
        strategy=sharing("head"),
        client=torch_client(PartialClient),
    ),
    "fedrep": Method(
        summary="FedPer whose clients first fit their head, then the body",
        paper="Collins et al. 2021",
        trait="personalises",
        strategy=sharing("body"),
        client=torch_client(FedRepClient),
        options=FedRepOptions,
        table="fedrep",
    ),
    "apfl": Method(
        summary="a mixture of the global model and the client's own, its weight fixed or learned",
        paper="Deng, Kamani, Mahdavi 2020",
        trait="personalises",
        strategy=lambda options, task, seed: APFL(options),
        client=torch_client(APFLClient),
        options=APFLOptions,
        table="apfl",
    ),
    "pfedme": Method(
        summary="personal models near the global one, which descends their Moreau envelopes",
        paper="Dinh, Tran, Nguyen 2020",
        trait="personalises",
        strategy=pfedme,
        client=torch_client(PFedMeClient),
        options=PFedMeOptions,
        table="pfedme",
    ),
    "ditto": Method(
        summary="FedAvg, and beside it a personal model that is pulled to the global one",
        paper="Li et al. 2021",
        trait="personalises",
        strategy=lambda options, task, seed: Ditto(options),
        client=torch_client(DittoClient),
        options=DittoOptions,
        table="ditto",
    ),
}
