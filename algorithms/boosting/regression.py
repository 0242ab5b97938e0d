"""Regression of a network on target outputs, with Adam.

One loop serves functional boosting (a client fits a weak learner to a functional gradient) and distillation (the server fits one
network to an ensemble's outputs). Inputs and targets stay on their device, nothing is copied or synchronised within an epoch, and the
sample order comes from the generator passed in: the same arguments give the same network.

Source of the optimiser: Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv 1412.6980.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from algorithms.boosting.fit_options import FitOptions as FitOptions
from algorithms.common.modules import torch_seeded

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam


class Diverged(ValueError):
    """A fit produced non-finite values; its network must not be used."""


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared difference of two arrays (n, ...), averaged over samples and outputs."""
    return functional.mse_loss(outputs, targets)


def divergence(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ``KL(softmax(targets) || softmax(outputs))`` of logits (n, classes), averaged over samples."""
    return functional.kl_div(outputs.log_softmax(1), targets.log_softmax(1), reduction="batchmean", log_target=True)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": squared_error, "kl": divergence}


def fit_network(module: nn.Module, inputs: Tensor, targets: Tensor, options: FitOptions, generator: np.random.Generator) -> float:
    """Fit ``module`` in place to ``targets`` (n, ...) at ``inputs`` (n, ...); return the mean training loss of the last epoch.

    Raises ``Diverged`` if the loss of an epoch or a final parameter is not finite, ``ValueError`` if targets and inputs do not match.
    """
    count = len(inputs)
    if not count or len(targets) != count:
        raise ValueError(f"{count} inputs and {len(targets)} targets: give one target for each input, at least one")
    loss_of = LOSSES[options.loss]
    parameters = [p for p in module.parameters() if p.requires_grad]
    adam = Adam([p.detach() for p in parameters], options.learning_rate, options.weight_decay, options.clip)
    batches = -(-count // options.batch_size)
    left = options.steps or options.epochs * batches
    mean = 0.0
    was_training = module.training
    module.train()
    with torch_seeded(int(generator.integers(2**63)), inputs.device):
        while left > 0:
            order = torch.from_numpy(generator.permutation(count)[: left * options.batch_size]).to(inputs.device)
            total = torch.zeros((), device=inputs.device)
            for x, y in zip(inputs[order].split(options.batch_size), targets[order].split(options.batch_size), strict=True):
                outputs = module(x)
                if outputs.shape != y.shape:  # broadcasting would silently fit something else
                    raise ValueError(f"outputs of shape {tuple(outputs.shape)}, but targets of shape {tuple(y.shape)}")
                loss = loss_of(outputs, y)
                adam.step(list(torch.autograd.grad(loss, parameters)))
                total += loss.detach() * len(x)
            left -= batches
            mean = float(total) / len(order)
            _check_finite(mean, [], options)
    _check_finite(mean, adam.parameters, options)  # no loss was computed after the last step
    module.train(was_training)
    return mean


class Adam:
    """Adam with beta = (0.9, 0.999) on a list of tensors; gradients are clipped to norm ``clip`` (0: not).

    One fused operation where this PyTorch has it, else some over all tensors: the same numbers up to rounding.
    """

    def __init__(self, parameters: list[Tensor], rate: float, weight_decay: float = 0.0, clip: float = 0.0) -> None:
        self.parameters = parameters
        self.rate, self.weight_decay, self.clip = rate, weight_decay, clip
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.done = 0
        self.steps = [torch.zeros((), device=p.device) for p in parameters]

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step; overwrites ``gradients``."""
        if self.clip:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1))
        fused = getattr(torch, "_fused_adam_", None)  # what torch.optim.Adam(fused=True) calls; not a promise of PyTorch's
        if fused is None:
            self._unfused(gradients)
            return
        torch._foreach_add_(self.steps, 1)
        fused(
            self.parameters, gradients, self.first, self.second, [], self.steps, lr=self.rate, beta1=BETAS[0], beta2=BETAS[1],
            weight_decay=self.weight_decay, eps=EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _unfused(self, gradients: list[Tensor]) -> None:
        if self.weight_decay:
            torch._foreach_add_(gradients, self.parameters, alpha=self.weight_decay)
        torch._foreach_lerp_(self.first, gradients, 1 - BETAS[0])
        torch._foreach_mul_(self.second, BETAS[1])
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - BETAS[1])
        self.done += 1
        roots = torch._foreach_sqrt(self.second)
        torch._foreach_div_(roots, (1 - BETAS[1] ** self.done) ** 0.5)
        torch._foreach_add_(roots, EPSILON)
        torch._foreach_addcdiv_(self.parameters, self.first, roots, -self.rate / (1 - BETAS[0] ** self.done))


def _check_finite(loss: float, parameters: list[Tensor], options: FitOptions) -> None:
    if not np.isfinite(loss) or not all(bool(torch.isfinite(p).all()) for p in parameters):
        raise Diverged(
            f"the fit diverged (loss {loss:g} at learning-rate = {options.learning_rate:g}): lower it, or check the inputs and targets"
        )
