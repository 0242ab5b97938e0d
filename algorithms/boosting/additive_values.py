"""Values of an additive function at points, as tensors: all of it, or from those before a block to those after it."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from algorithms.boosting.additive import Additive, Block
from algorithms.boosting.functional import clipped

#: (learners stacked (m, ...), points (n, ...)) -> values (m, n, outputs)
Predict = Callable[[Mapping[str, Tensor], Tensor], Tensor]
#: Values of learners that are in memory at once.
BATCH = 4_000_000


def values_at(function: Additive, x: Tensor, outputs: int, predict: Predict, points: int = 4096) -> Tensor:
    """Return the values (n, outputs) of a function at the points x (n, ...), computed in batches of ``points``."""
    parts = [_values(function, part, outputs, predict) for part in x.split(points)]
    return torch.cat(parts) if parts else torch.zeros((0, outputs), device=x.device)


def _values(function: Additive, x: Tensor, outputs: int, predict: Predict) -> Tensor:
    values = torch.zeros((len(x), outputs), device=x.device)
    for block in function.blocks:
        values = advance(values, block, x, predict, function.clip)
    return values


def advance(values: Tensor, block: Block, x: Tensor, predict: Predict, clip: float | None = None) -> Tensor:
    """Return the values (n, outputs) at x after a block, from those before it."""
    values = block.shrink * values
    for start, learners in _chunks(block, max(1, BATCH // max(1, values.numel())), x.device):
        found = clipped(predict(learners, x), clip)
        weights = torch.tensor(block.coefficients[start : start + len(found)], dtype=values.dtype, device=x.device)
        values = values + torch.tensordot(weights, found.to(values.dtype), 1)
    return values


def _chunks(block: Block, size: int, device: torch.device) -> Iterator[tuple[int, dict[str, Tensor]]]:
    for start in range(0, len(block), size):
        yield start, {name: torch.tensor(array[start : start + size], device=device) for name, array in block.learners.items()}
