"""FedEvg's energies: classifiers as energy-based models, and Langevin steps of samples down the energy of a mixture of them.

A net f defines the energy ``E(x, y) = -f(x)[y]`` of a labelled sample. Clients train their nets by cross-entropy and contrastive
divergence (Algorithm 4.2, with a sign corrected: see :func:`joint_loss`); the server steps along the gradient of the mixture of the
clients' energies (equations 4.11, 4.13, 4.14):

    p(x) = sum_i w_i exp(-E_i(x)),   grad E = sum_i w_i e_i grad E_i / sum_i w_i e_i,   e_i = exp(-E_i(x)), or exp(sgn(-E_i(x)))
    x <- x - beta_t grad E + delta eps,   eps ~ N(0, I)

Clients send ``log e_i`` for each sample, so that no exponential can overflow.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024,
arXiv 2408.00050, Chapter IV. Schedule "ddpm": Nichol, Dhariwal, "Improved Denoising Diffusion Probabilistic Models", ICML 2021,
arXiv 2102.09672.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from algorithms.common.checks import check_choice

SCHEDULES = ("cosine", "ddpm")
WEIGHTS = ("sign", "exponential")
Numbers = NDArray[np.float32]


def energy(logits: Tensor, y: Tensor) -> Tensor:
    """Return ``E(x, y) = -f(x)[y]`` (m,) of logits (m, classes)."""
    return -logits.gather(1, y[:, None]).squeeze(1)


def energies_and_gradients(net: nn.Module, x: Tensor, y: Tensor, batch_size: int = 256) -> tuple[Tensor, Tensor]:
    """Return the energies (m,) of samples x (m, ...) with labels y (m,), and their gradients with respect to x (m, ...)."""
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
    """Return ``x - step grad E + scale noise`` (equation 4.9), the gradient clipped to ±clip and the result to [low, high]."""
    _, gradient = energies_and_gradients(net, x, y)
    return (x - step * gradient.clamp(-clip, clip) + scale * noise).clamp(low, high)


def joint_loss(net: nn.Module, real: tuple[Tensor, Tensor], start: Tensor, moved: Tensor, y: Tensor, lambda_: float) -> Tensor:
    """Return ``CE(f(x), y) + lambda CE(f(start), y~) + E(x, y) - E(moved, y~)``, averaged over real and over synthetic samples.

    ``real``: (x, y); ``start``: synthetic samples; ``moved``: the same after their Langevin steps; ``y``: their labels y~. The last two
    terms, the persistent contrastive divergence, are printed as ``f(x)[y] - f(moved)[y~]``: with E = -f that would raise the energy of
    the data and lower that of the samples.
    """
    x, labels = real
    logits, at_start, at_moved = net(torch.cat([x, start, moved])).split([len(x), len(start), len(moved)])
    entropy = functional.cross_entropy(logits, labels) + lambda_ * functional.cross_entropy(at_start, y)
    loss: Tensor = entropy + energy(logits, labels).mean() - energy(at_moved, y).mean()
    return loss


def log_weights(energies: NDArray[np.floating], kind: str = "sign") -> Numbers:
    """Return the log weights log e_i: ``sgn(-E)`` ("sign") or ``-E`` ("exponential")."""
    check_choice("weights", kind, WEIGHTS)
    return np.asarray(np.sign(-energies) if kind == "sign" else -energies, np.float32)


def mixture_gradient(
    logs: Sequence[NDArray[np.floating]], gradients: Sequence[NDArray[np.floating]], shares: Sequence[float]
) -> NDArray[np.float64]:
    """Return the gradient (m, ...) of the mixture's energy, equation (4.13).

    For client i: ``logs[i]`` (m,) = log e_i, ``gradients[i]`` (m, ...), ``shares[i]`` = w_i > 0. Sums run in the order given.
    """
    exponents = np.stack([np.asarray(log, np.float64) + math.log(share) for log, share in zip(logs, shares, strict=True)])
    weights = np.exp(exponents - exponents.max(0))  # the largest is 1: only ratios matter
    weights /= weights.sum(0)
    total = np.zeros(np.shape(gradients[0]))
    for weight, gradient in zip(weights, gradients, strict=True):
        total += weight.reshape(-1, *[1] * (total.ndim - 1)) * gradient
    return total


def server_step(
    x: Numbers, gradient: NDArray[np.floating], noise: NDArray[np.floating], beta: float, delta: float, low: float, high: float
) -> Numbers:
    """Return the samples of the next round, equation (4.14), clipped to [low, high]."""
    return np.asarray(np.clip(x - beta * gradient + delta * noise, low, high), np.float32)


def step_size(schedule: str, first: float, last: float, t: int, num_rounds: int) -> float:
    """Return beta of round t = 0 .. num_rounds - 1, from ``first`` to ``last``.

    cosine: half a cosine period between the two. ddpm: the noise variances of Nichol and Dhariwal's cosine schedule, rescaled to the
    two ends: nearly constant until the last rounds, as in the dissertation's program.
    """
    check_choice("schedule", schedule, SCHEDULES)
    if num_rounds < 2:
        return first
    if schedule == "cosine":
        return last + (first - last) * (1 + math.cos(math.pi * t / (num_rounds - 1))) / 2
    variances = [_variance(s, num_rounds) for s in (0, t, num_rounds - 1)]
    return first + (last - first) * (variances[1] - variances[0]) / (variances[2] - variances[0])


def _variance(t: int, total: int) -> float:
    def kept(s: float) -> float:
        return math.cos((s / total + 0.008) / 1.008 * math.pi / 2) ** 2

    return min(1 - kept(t + 1) / kept(t), 0.999)
