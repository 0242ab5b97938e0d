"""Methods that distil on public images, FFGB-distill, FedAvg-distill and FedMD; and
FedDyn, another baseline of FFGB-distill.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from flwr.client import NumPyClient

from fedapps import clients
from fedapps.clients.base.options import BF16
from fedapps.errors import UserError
from fedapps.methods.method import IMAGE_TASKS, Method, TorchClient
from fedapps.strategies import (
    FedAvgDistill,
    FedDyn,
    FedMD,
    FedMDOptions,
    FFGBDistill,
)
from fedapps.tasks.context import RunContext

if TYPE_CHECKING:
    from torch import Tensor

    from fedapps.algorithms.boosting.regression import Distiller


@lru_cache(maxsize=2)
def public_images(task: Any) -> "Tensor":
    """Return the public images (m, C, H, W) on the task's device. Raises ``UserError``
    if there are none.
    """
    import torch

    from fedapps.data.images import load_public

    context: RunContext = task.context
    pixels = load_public(context.public, task.image_shape, task.name, context.seed)
    return torch.from_numpy(pixels).to(task.device)


def distiller_of(task: Any, context: RunContext) -> "Distiller":
    """Return a distiller of the task's network on the public images, on the task's
    device. Raises ``UserError`` if there are none.
    """
    from fedapps.algorithms.boosting.regression import Distiller
    from fedapps.algorithms.common.precision import set_bfloat16

    net = task.fresh_model(0)
    set_bfloat16(net, context.train.precision == BF16)
    return Distiller(net, public_images(task))


def fedmd(options: FedMDOptions, task: Any, context: RunContext) -> FedMD:
    """Return the FedMD strategy. Raises ``UserError`` if sites lack public images."""
    if context.sites.own and context.public.source != "photos":
        raise UserError(
            f"public.source = {context.public.source!r}: sites with data of their own do not have "
            "it: choose 'photos'"
        )
    return FedMD(len(public_images(task)), task.num_outputs, options)


@dataclass(frozen=True)
class PublicClient(TorchClient):
    """Factory of clients that have the public images."""

    def __call__(self, options: Any, task: Any, *rest: Any) -> NumPyClient:
        """Return the client."""
        client: Any = super().__call__(options, task, *rest)
        client.public = public_images(task)
        return cast(NumPyClient, client)


METHODS: dict[str, Method] = {
    "ffgb-distill": Method(
        summary="boosting of functions: clients send weak learners, the server distils the "
        "ensemble into one network",
        paper="Shen et al. 2022 (FFGB-distill)",
        trait="boosts",
        builds=FFGBDistill,
        strategy=lambda options, task, context: FFGBDistill(
            distiller_of(task, context), options, context.seed
        ),
        client="FFGBDistillClient",
        tasks=IMAGE_TASKS,
        public=True,
        defaults={"clients-per-round": 0},
    ),
    "fedavg-distill": Method(
        summary="FedAvg whose server distils the clients' mean output instead of averaging "
        "parameters",
        paper="Lin et al. 2020",
        trait="one global model",
        page="ffgb-distill",
        builds=FedAvgDistill,
        strategy=lambda options, task, context: FedAvgDistill(
            distiller_of(task, context), options, context.seed
        ),
        client="FedAvgClient",
        tasks=IMAGE_TASKS,
        public=True,
        defaults={"clients-per-round": 0},
    ),
    "fedmd": Method(
        summary="clients, of any nets, fit the mean of all scores on public images",
        paper="Li, Wang 2019",
        trait="personalises",
        builds=FedMD,
        strategy=fedmd,
        client=PublicClient(lambda: clients.FedMDClient),
        tasks=IMAGE_TASKS,
        public=True,
        any_net=True,
    ),
    "feddyn": Method(
        summary="linear corrections at clients and server make local and global optima agree",
        paper="Acar et al. 2021",
        trait="one global model",
        strategy=FedDyn,
        client="FedDynClient",
    ),
}
