"""FFGB-distill and the baselines of its paper that learn one network: FedAvg-distill
and FedDyn.
"""

from typing import TYPE_CHECKING, Any

from fedapps.clients.base.options import BF16
from fedapps.methods.method import IMAGE_TASKS, Method
from fedapps.strategies import (
    FedAvgDistill,
    FedDyn,
    FFGBDistill,
)
from fedapps.tasks.context import RunContext

if TYPE_CHECKING:
    from fedapps.algorithms.boosting.regression import Distiller


def distiller_of(task: Any, context: RunContext) -> "Distiller":
    """Return a distiller of the task's network on the public images, on the task's
    device. Raises ``UserError`` if there are none.
    """
    import torch

    from fedapps.algorithms.boosting.regression import Distiller
    from fedapps.algorithms.common.precision import set_bfloat16
    from fedapps.data.images import load_public

    pixels = load_public(context.public, task.image_shape, task.name, context.seed)
    net = task.fresh_model(0)
    set_bfloat16(net, context.train.precision == BF16)
    return Distiller(net, torch.from_numpy(pixels).to(task.device))


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
    "feddyn": Method(
        summary="linear corrections at clients and server make local and global optima agree",
        paper="Acar et al. 2021",
        trait="one global model",
        strategy=FedDyn,
        client="FedDynClient",
    ),
}
