"""The plain loop that local steps equal: mini-batches with PyTorch's own optimisers.

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
    optimizer: str = "sgd",
) -> float:
    """Train ``module`` in place on mini-batches (x, y), with the mean ``loss(outputs,
    y)``; return the sum of the losses of all samples. ``momentum``: Adam's beta_1.
    """
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    own = {"momentum": momentum} if optimizer == "sgd" else {"betas": (momentum, 0.999)}
    optimiser = kind(module.parameters(), rate, weight_decay=weight_decay, fused=True, **own)
    total = 0.0
    for x, y in batches:
        mean = loss(module(x), y)
        optimiser.zero_grad()
        mean.backward()
        optimiser.step()
        total += mean.item() * len(y)
    return total
