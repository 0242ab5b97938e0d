"""A classifier read as an energy, and a set of samples that moves down the energy of a mixture of classifiers.

Source: Hahn 2024 (dissertation), Chapter IV. A net f defines the energy ``E(x, y) = -f(x)[y]`` of a labelled sample. Clients train
their nets by cross-entropy and by contrast with samples (Algorithm 4.2, with the sign mended: see :func:`joint_loss`); the server
steps along the mixture of the clients' energies (equations 4.11, 4.13, 4.14):

    p(x) = sum_i w_i exp(-E_i(x)),   grad E = sum_i w_i e_i grad E_i / sum_i w_i e_i,   e_i = exp(-E_i(x)), or exp(sgn(-E_i(x)))
    x <- x - beta_t grad E + delta eps,   eps ~ N(0, I)

What travels for a sample is ``log e_i``, so that no exponential can overflow on the way.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def energy(logits: Tensor, y: Tensor) -> Tensor:
    """Return ``E(x, y) = -f(x)[y]`` (m,) of logits (m, classes)."""
    return -logits.gather(1, y[:, None]).squeeze(1)


def energies_and_gradients(net: nn.Module, x: Tensor, y: Tensor, batch_size: int = 256) -> tuple[Tensor, Tensor]:
    """Return the energies (m,) of samples x (m, ...) with labels y (m,), and their gradients by x (m, ...)."""
    parts = []
    for some, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        inputs = some.detach().requires_grad_()
        values = energy(net(inputs), labels)
        (gradient,) = torch.autograd.grad(values.sum(), inputs)
        parts.append((values.detach(), gradient))
    return torch.cat([values for values, _ in parts]), torch.cat([gradient for _, gradient in parts])


def langevin_step(
    net: nn.Module, x: Tensor, y: Tensor, noise: Tensor, step: float, scale: float, clip: float, low: float, high: float
) -> Tensor:
    """Return ``x - step grad E + scale noise`` (equation 4.9), every entry of the gradient within ±clip, the result in [low, high]."""
    _, gradient = energies_and_gradients(net, x, y)
    return (x - step * gradient.clamp(-clip, clip) + scale * noise).clamp(low, high)


def joint_loss(net: nn.Module, real: tuple[Tensor, Tensor], start: Tensor, moved: Tensor, y: Tensor, lambda_: float) -> Tensor:
    """Return ``CE(f(x), y) + lambda CE(f(start), y~) + E(x, y) - E(moved, y~)``, means over real samples and over synthetic ones.

    ``real``: (x, y); ``start``: synthetic samples; ``moved``: the same after their Langevin steps; ``y``: their labels. The paper
    prints the last two terms, the persistent contrastive divergence, as ``f(x)[y] - f(moved)[y~]``: with E = -f that would raise the
    energy of the data and lower that of the samples.
    """
    x, labels = real
    logits, at_start, at_moved = net(torch.cat([x, start, moved])).split([len(x), len(start), len(moved)])
    entropy = functional.cross_entropy(logits, labels) + lambda_ * functional.cross_entropy(at_start, y)
    loss: Tensor = entropy + energy(logits, labels).mean() - energy(at_moved, y).mean()
    return loss
