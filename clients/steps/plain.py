"""The plain loop that local steps equal: mini-batch SGD with PyTorch's own optimiser.

``FedAvgClient.train`` gives the same parameters and the same loss; in double precision
to the last bit, as a test checks. It does not call this function, because
``torch.optim`` takes two seconds to import, and because methods add to the step.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def train(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> float:
    """Train ``module`` in place on mini-batches (x, y), with the mean ``loss(outputs,
    y)``; return the sum of the losses of all samples.
    """
    optimiser = torch.optim.SGD(
        module.parameters(), rate, momentum, weight_decay=weight_decay, fused=True
    )
    total = 0.0
    for x, y in batches:
        mean = loss(module(x), y)
        optimiser.zero_grad()
        mean.backward()
        optimiser.step()
        total += mean.item() * len(y)
    return total
