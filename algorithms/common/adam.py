"""A step of Adam, and of AdamW, on lists of tensors.

Sources: Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv
1412.6980; Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, arXiv
1711.05101.
"""

import math

import torch
from torch import Tensor

from fedapps.algorithms.common.steps import Tensors

BETAS, EPSILON = (0.9, 0.999), 1e-8


def descend(
    w: Tensors,
    gradients: Tensors,
    moments: tuple[Tensors, Tensors],
    step: Tensor,
    rate: float | Tensor,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    beta: float = BETAS[0],
) -> None:
    """Take one step in place; overwrites ``gradients``.

    ``moments``: first and second, both 0 at the start. ``step``: its number, 1 for the
    first. ``decoupled``: AdamW. ``beta``: decay of the first moment. One fused
    operation where this PyTorch has it and the rate is a number, else some over all
    tensors: the same numbers up to rounding.
    """
    betas, (first, second) = (beta, BETAS[1]), moments
    # what torch.optim's fused optimisers call; not a promise of PyTorch's
    fused = getattr(torch, "_fused_adamw_" if decoupled else "_fused_adam_", None)
    if fused is not None and not isinstance(rate, Tensor):
        fused(
            w, gradients, first, second, [], [step] * len(w), lr=rate, beta1=betas[0],
            beta2=betas[1], weight_decay=weight_decay, eps=EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip
        return
    if weight_decay and decoupled:
        torch._foreach_mul_(w, 1 - rate * weight_decay)
    elif weight_decay:
        torch._foreach_add_(gradients, w, alpha=weight_decay)
    torch._foreach_lerp_(first, gradients, 1 - betas[0])
    torch._foreach_mul_(second, betas[1])
    torch._foreach_addcmul_(second, gradients, gradients, 1 - betas[1])
    # 1 - beta^step, which in single precision would lose digits in the first steps
    left, left_of_squares = (
        -torch.expm1(step * math.log(b)) if b else torch.ones_like(step) for b in betas
    )
    roots = torch._foreach_sqrt(second)
    torch._foreach_div_(roots, left_of_squares.sqrt())
    torch._foreach_add_(roots, EPSILON)
    moves = torch._foreach_div(first, roots)
    torch._foreach_mul_(moves, -rate / left)
    torch._foreach_add_(w, moves)
