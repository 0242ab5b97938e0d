"""FedEvg's energies: classifiers as energy-based models, and Langevin steps of samples
down the energy of a mixture of them.

A net f defines the energy ``E(x, y) = -f(x)[y]`` of a labelled sample. Clients train
their nets by cross-entropy and contrastive divergence (Algorithm 4.2, with a sign
corrected: see :func:`joint_loss`); the server steps along the gradient of the mixture
of the clients' energies (equations 4.11, 4.13, 4.14):

    p(x) = sum_i w_i exp(-E_i(x)),
        grad E = sum_i w_i e_i grad E_i / sum_i w_i e_i,   e_i = exp(-E_i(x)), or
        exp(sgn(-E_i(x)))
    x <- x - beta_t grad E + delta eps,  eps ~ N(0, I)

Clients send ``log e_i`` for each sample, so that no exponential can overflow.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV. Schedule "ddpm":
Nichol, Dhariwal, "Improved Denoising Diffusion Probabilistic Models", ICML 2021, arXiv
2102.09672.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def energy(logits: Tensor, y: Tensor) -> Tensor:
    """Return ``E(x, y) = -f(x)[y]`` (m,) of logits (m, classes)."""
    return -logits.gather(1, y[:, None]).squeeze(1)


def energies_and_gradients(
    net: nn.Module, x: Tensor, y: Tensor, batch_size: int = 256
) -> tuple[Tensor, Tensor]:
    """Return the energies (m,) of samples x (m, ...) with labels y (m,), and their
    gradients with respect to x (m, ...).
    """
    parts = []
    for some, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        inputs = some.detach().requires_grad_()
        values = energy(net(inputs), labels)
        (gradient,) = torch.autograd.grad(values.sum(), inputs)
        parts.append((values.detach(), gradient))
    return torch.cat([values for values, _ in parts]), torch.cat(
        [gradient for _, gradient in parts]
    )


def langevin_step(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    step: float,
    scale: float,
    clip: float,
    low: float,
    high: float,
) -> Tensor:
    """Return ``x - step grad E + scale noise`` (equation 4.9), the gradient clipped to
    ±clip and the result to [low, high].
    """
    _, gradient = energies_and_gradients(net, x, y)
    return (x - step * gradient.clamp(-clip, clip) + scale * noise).clamp(low, high)


def joint_loss(
    net: nn.Module,
    real: tuple[Tensor, Tensor],
    start: Tensor,
    moved: Tensor,
    y: Tensor,
    lambda_: float,
) -> Tensor:
    """Return ``CE(f(x), y) + lambda CE(f(start), y~) + E(x, y) - E(moved, y~)``,
    averaged over real and over synthetic samples.

    ``real``: (x, y); ``start``: synthetic samples; ``moved``: the same after their
    Langevin steps; ``y``: their labels y~. The last two terms, the persistent
    contrastive divergence, are printed as ``f(x)[y] - f(moved)[y~]``: with E = -f that
    would raise the energy of the data and lower that of the samples.
    """
    x, labels = real
    logits, at_start, at_moved = net(torch.cat([x, start, moved])).split(
        [len(x), len(start), len(moved)]
    )
    entropy = functional.cross_entropy(logits, labels) + lambda_ * functional.cross_entropy(
        at_start, y
    )
    loss: Tensor = entropy + energy(logits, labels).mean() - energy(at_moved, y).mean()
    return loss
