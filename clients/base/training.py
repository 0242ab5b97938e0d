"""Code that all clients with a net share: options, moving arrays. ``clients.steps`` has
their steps.
"""

from torch import Tensor, nn

from algorithms.common.modules import Arrays as Arrays
from algorithms.common.modules import get_arrays as get_arrays
from algorithms.common.modules import set_arrays as set_arrays
from clients.base.options import Config as Config
from clients.base.options import TrainOptions as TrainOptions


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
