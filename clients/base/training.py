"""Local training shared by all gradient methods: mini-batches, SGD with momentum on lists of tensors, moving arrays.

Optimised for small models: tensors are indexed once per epoch, a step copies and synchronises nothing, and one call updates all
tensors. The order of operations is the same for every method, so that a method whose extra terms vanish equals FedAvg to the last
bit.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.common.modules import Arrays as Arrays
from algorithms.common.modules import get_arrays as get_arrays
from algorithms.common.modules import set_arrays as set_arrays
from clients.base.data import Split
from clients.base.options import Config as Config
from clients.base.options import TrainOptions as TrainOptions

Tensors = list[Tensor] | tuple[Tensor, ...]
Terms = Sequence[tuple[Tensors, float]]


class SGD:
    """SGD with momentum on a list of tensors: ``v <- momentum v + d``, ``p <- p - rate v``.

    One fused operation where this PyTorch has it, else three over all tensors: the same numbers up to rounding.
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, momentum: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.rate, self.momentum, self.weight_decay = rate, momentum, weight_decay
        self.velocity = [torch.zeros_like(p) for p in self.parameters] if momentum else []

    def step(self, gradients: Tensors, decay: float = 0.0, terms: Terms = (), scale: float = 1.0) -> None:
        """Take one step along ``d = scale gradients + (weight_decay + decay) p + sum_j c_j t_j`` for ``terms`` (t_j, c_j).

        ``scale`` must be > 0. Overwrites ``gradients`` if there are terms.
        """
        for tensors, coefficient in terms:
            if coefficient:
                torch._foreach_add_(gradients, tensors, alpha=coefficient / scale)
        decay = (self.weight_decay + decay) / scale
        if not self.momentum and not decay:
            torch._foreach_add_(self.parameters, gradients, alpha=-self.rate * scale)
            return
        fused = getattr(torch, "_fused_sgd_", None)  # what torch.optim.SGD(fused=True) calls; not a promise of PyTorch's
        if fused is None:
            moves = torch._foreach_add(gradients, self.parameters, alpha=decay) if decay else gradients
            if self.momentum:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, moves, alpha=scale)
                torch._foreach_add_(self.parameters, self.velocity, alpha=-self.rate)
            else:
                torch._foreach_add_(self.parameters, moves, alpha=-self.rate * scale)
            return
        # The kernel adds (1 - dampening) (g + weight_decay p) to the velocity; without momentum it ignores dampening.
        fused(
            self.parameters, gradients, self.velocity, weight_decay=decay, momentum=self.momentum,
            lr=self.rate if self.momentum else self.rate * scale, dampening=1 - scale if self.momentum else 0.0,
            nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


def flatten(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a copy of the tensors as one vector, and views of it in the tensors' shapes."""
    flat = torch.cat([t.reshape(-1) for t in tensors])
    return flat, [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]


def mini_batches(data: Split, options: TrainOptions, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the mini-batches (x, y) of ``local_epochs`` epochs, each in a new random order; the last of an epoch may be smaller."""
    for _ in range(options.local_epochs):
        order = torch.from_numpy(rng.permutation(len(data))).to(data.y.device)
        yield from zip(data.x[order].split(options.batch_size), data.y[order].split(options.batch_size), strict=True)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
