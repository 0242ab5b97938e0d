"""Code that all clients with a net share: options, moving arrays. ``clients.steps`` has
their steps.
"""

from torch import Tensor, nn

from fedapps.algorithms.common.modules import (
    Arrays as Arrays,
    get_arrays as get_arrays,
    set_arrays as set_arrays,
)
from fedapps.clients.base.options import Config as Config, TrainOptions as TrainOptions


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
