"""Personalised methods, in which every client has its own model, and their
baselines.
"""

from typing import Any

from flwr.serverapp.strategy import Strategy

from fedapps.errors import UserError
from fedapps.methods.method import Method, StrategyFactory
from fedapps.models.options import names_of_nets
from fedapps.notes import logger
from fedapps.strategies import (
    APFL,
    IFCA,
    Ditto,
    FedALA,
    FedBABU,
    FedBN,
    FedProto,
    FedRep,
    FedRepOptions,
    FedRoD,
    FedTGP,
    Finetune,
    Floco,
    Local,
    Partial,
    PartialSharing,
    PerFedAvg,
    PFedMe,
    PFedMeOptions,
    SuPerFed,
    SuPerFedOptions,
)
from fedapps.strategies.families.shared_part import SharedPart
from fedapps.tasks.base import declared_head
from fedapps.tasks.context import RunContext


def sharing(share: str) -> StrategyFactory:
    """Return a factory of the strategy that shares one part of the task's model: "body"
    or "head".
    """

    def build(options: FedRepOptions | None, task: Any, context: RunContext) -> Strategy:
        head = declared_head(task.work_model(), context.model.name)
        return fitting(
            FedRep(head, options) if options else PartialSharing(head, share), task, context
        )

    return build


def fedbn(options: None, task: Any, context: RunContext) -> Strategy:
    """Return the FedBN strategy; log a warning if the model has no normalisation
    layer.
    """
    from fedapps.algorithms.common.modules import normalisation

    if not (own := normalisation(task.work_model())):
        logger.warning(
            "fedbn: the net has no normalisation layer, so all layers are averaged, as in fedavg: "
            "choose another net"
        )
    return fitting(FedBN(own), task, context)


def fitting(strategy: SharedPart, task: Any, context: RunContext) -> Strategy:
    """Return the strategy. Raises ``UserError`` if it cannot share the task's model."""
    try:
        strategy.check(list(task.work_model().state_dict()))
    except ValueError as error:
        raise UserError(f"model.name = {context.model.name!r}: {error}") from None
    return strategy


def pfedme(options: PFedMeOptions, task: Any, context: RunContext) -> Strategy:
    """Return the pFedMe strategy. Raises ``UserError`` if lambda times the rate exceeds
    1, so that w_i would overshoot theta_i.
    """
    rate = options.rate or context.train.learning_rate
    if options.lambda_ * rate > 1:
        raise UserError(
            f"pfedme.lambda = {options.lambda_:g}, but the rate is {rate:g}: their product must be "
            f"at most 1: choose pfedme.rate = {1 / options.lambda_:.3g} or less"
        )
    return PFedMe(options)


def superfed_start(options: SuPerFedOptions) -> str:
    """Return "random" if the two models start apart, else "": the task's. The angle
    between two models that are 0 is not defined.
    """
    return "random" if options.init == "own" else ""


def size_of_prototypes(task: Any, context: RunContext) -> int:
    """Return the size of the smallest representation of the clients' nets, to which
    others are pooled. Raises ``UserError`` for a net without one.
    """
    import torch

    from fedapps.clients.fedproto import Representation

    sizes: list[int] = []
    for k, name in enumerate(names_of_nets(context.model.name)):
        own = task.with_net_of(k)
        head, net = declared_head(own.work_model(), name), own.work_model()
        if all(n.startswith(head) for n, _ in net.named_parameters()):
            raise UserError(
                f"model.name: {name!r} has no layer before its head, so nothing to share: leave it "
                "out, or set model.head"
            )
        with torch.no_grad():
            x = torch.zeros(2, *task.image_shape, device=task.device)
            sizes.append(Representation(net.eval())(x).shape[1])
    return min(sizes)


#: Tasks whose samples have one class each.
CLASSES = ("classification", "digits", "speech")

METHODS: dict[str, Method] = {
    "local": Method(
        summary="no federation: every client trains alone",
        paper="baseline",
        trait="personalises",
        strategy=Local,
        client="LocalClient",
        any_net=True,
    ),
    "finetune": Method(
        summary="FedAvg; every client fine-tunes the model before using it",
        paper="baseline",
        trait="personalises",
        strategy=Finetune,
        client="FinetuneClient",
        chooses=True,
    ),
    "superfed-mm": Method(
        summary="federated and personal model mixed at random, one weight per model",
        paper="Hahn et al. 2022 (SuPerFed-MM)",
        trait="personalises",
        builds=SuPerFed,
        strategy=lambda options, task, context: SuPerFed(options, mixing="model"),
        client="SuPerFedClient",
        chooses=True,
        start=superfed_start,
    ),
    "superfed-lm": Method(
        summary="federated and personal model mixed at random, one weight per layer",
        paper="Hahn et al. 2022 (SuPerFed-LM)",
        trait="personalises",
        builds=SuPerFed,
        strategy=lambda options, task, context: SuPerFed(options, mixing="layer"),
        client="SuPerFedClient",
        chooses=True,
        start=superfed_start,
    ),
    "fedper": Method(
        summary="averages the body of the model; every client keeps its own head",
        paper="Arivazhagan et al. 2019",
        trait="personalises",
        page="partial-sharing",
        builds=PartialSharing,
        strategy=sharing("body"),
        client="PartialClient",
    ),
    "lg-fedavg": Method(
        summary="averages the head of the model; every client keeps its own body",
        paper="Liang et al. 2020",
        trait="personalises",
        page="partial-sharing",
        builds=PartialSharing,
        strategy=sharing("head"),
        client="PartialClient",
    ),
    "fedrep": Method(
        summary="FedPer whose clients first fit their head, then the body",
        paper="Collins et al. 2021",
        trait="personalises",
        page="partial-sharing",
        builds=FedRep,
        strategy=sharing("body"),
        client="FedRepClient",
        table="fedrep",
    ),
    "apfl": Method(
        summary="a mixture of the global model and the client's own, its weight fixed or learned",
        paper="Deng, Kamani, Mahdavi 2020",
        trait="personalises",
        page="personal-models",
        strategy=APFL,
        client="APFLClient",
    ),
    "pfedme": Method(
        summary="personal models near the global one, which descends their Moreau envelopes",
        paper="Dinh, Tran, Nguyen 2020",
        trait="personalises",
        page="personal-models",
        builds=PFedMe,
        strategy=pfedme,
        client="PFedMeClient",
    ),
    "ditto": Method(
        summary="FedAvg, and a personal model per client that is pulled to the global one",
        paper="Li et al. 2021",
        trait="personalises",
        page="personal-models",
        strategy=Ditto,
        client="DittoClient",
        chooses=True,
    ),
    "fedbn": Method(
        summary="averages all but the normalisation layers, which stay with the clients",
        paper="Li et al. 2021 (FedBN)",
        trait="personalises",
        page="partial-sharing",
        builds=FedBN,
        strategy=fedbn,
        client="FedBNClient",
    ),
    "partial": Method(
        summary="averages the arrays whose names match, the others stay with the clients",
        paper="Pillutla et al. 2022",
        trait="personalises",
        page="partial-sharing",
        builds=Partial,
        strategy=lambda options, task, context: fitting(Partial(options), task, context),
        client="FilteredClient",
    ),
    "fedbabu": Method(
        summary="averages the body, trained under a head that stays random; clients fine-tune "
        "before use",
        paper="Oh, Kim, Yun 2022",
        trait="personalises",
        page="partial-sharing",
        builds=FedBABU,
        strategy=lambda options, task, context: fitting(
            FedBABU(declared_head(task.work_model(), context.model.name), options), task, context
        ),
        client="FedBABUClient",
    ),
    "fedala": Method(
        summary="a client starts between its own model and the global one, at weights it learns",
        paper="Zhang et al. 2023",
        trait="personalises",
        strategy=FedALA,
        client="FedALAClient",
    ),
    "ifca": Method(
        summary="k models for k clusters of clients; a client trains the one that fits it best",
        paper="Ghosh et al. 2020",
        trait="personalises",
        strategy=IFCA,
        client="IFCAClient",
    ),
    "floco": Method(
        summary="the head is a point of a simplex between heads; clients train the part that fits",
        paper="Grinwald, Wiesner, Nakajima 2024",
        trait="personalises",
        builds=Floco,
        strategy=lambda options, task, context: Floco(
            declared_head(task.work_model(), context.model.name), options, context.seed
        ),
        client="FlocoClient",
    ),
    "fedrod": Method(
        summary="a global model trained with a balanced loss, and a second, personal head per "
        "client",
        paper="Chen, Chao 2022",
        trait="personalises",
        strategy=FedRoD,
        client="FedRoDClient",
        tasks=CLASSES,
    ),
    "fedproto": Method(
        summary="clients, of any nets, share class means of their representations",
        paper="Tan et al. 2022",
        trait="personalises",
        builds=FedProto,
        strategy=lambda options, task, context: FedProto(
            task.num_outputs, size_of_prototypes(task, context), options
        ),
        client="FedProtoClient",
        tasks=CLASSES,
        any_net=True,
    ),
    "fedtgp": Method(
        summary="FedProto whose server trains the prototypes to lie apart",
        paper="Zhang et al. 2024 (FedTGP)",
        trait="personalises",
        page="fedproto",
        builds=FedTGP,
        strategy=lambda options, task, context: FedTGP(
            task.num_outputs, size_of_prototypes(task, context), options, context.seed
        ),
        client="FedProtoClient",
        tasks=CLASSES,
        any_net=True,
    ),
    "per-fedavg": Method(
        summary="a global model that is good after one gradient step on a client's own samples",
        paper="Fallah, Mokhtari, Ozdaglar 2020",
        trait="personalises",
        strategy=PerFedAvg,
        client="PerFedAvgClient",
    ),
}
