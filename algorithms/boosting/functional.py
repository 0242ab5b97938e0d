"""Boosting in function space: functional gradients, step sizes, clipping, residual, Lipschitz extension.

A function is represented by its values (n, outputs) at n points. One output means binary classification: the logit of label 1.

Sources: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS 2022, arXiv 2103.06972, Algorithms 1 and 2;
its first version (2021, arXiv 2103.06972v1) for the clipped variant (FFGB.C, Algorithm 3) and the Lipschitz variant (FFGB.L,
Algorithm 4).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Largest number of pairwise distances held in memory at once.
BLOCK = 4_000_000

# --- losses ------------------------------------------------------------------------------------------------------------


def check_labels(labels: Tensor, outputs: int) -> None:
    """Raise ``ValueError`` unless the labels (n,) are integers below the number of classes that ``outputs`` can distinguish."""
    classes = max(2, outputs)
    if labels.dtype.is_floating_point or (len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        shown = f"{labels.min().item()}..{labels.max().item()} of type {labels.dtype}"
        raise ValueError(f"labels {shown}, but the function tells {classes} classes apart: labels are whole, 0 to {classes - 1}")


def coded(labels: Tensor, outputs: int) -> Tensor:
    """Return labels (n,) as regression targets (n, outputs): one-hot, or -1 and 1 if there is one output, whose sign then decides."""
    if outputs == 1:
        return (2.0 * labels - 1.0)[:, None].float()
    return functional.one_hot(labels, outputs).float()


@dataclass(frozen=True)
class Loss:
    """A loss: its pointwise ``gradient(values, labels)`` (n, outputs), and ``mean(values, labels)`` over the points."""

    gradient: Callable[[Tensor, Tensor], Tensor]
    mean: Callable[[Tensor, Tensor], Tensor]


def _cross_entropy_gradient(values: Tensor, labels: Tensor) -> Tensor:
    if values.shape[1] == 1:
        return values.sigmoid() - labels[:, None].to(values.dtype)
    return values.softmax(1) - functional.one_hot(labels, values.shape[1]).to(values.dtype)


def _cross_entropy(values: Tensor, labels: Tensor) -> Tensor:
    if values.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(values[:, 0], labels.to(values.dtype))
    return functional.cross_entropy(values, labels)


LOSSES = {
    "cross-entropy": Loss(_cross_entropy_gradient, _cross_entropy),
    "square": Loss(
        lambda values, labels: values - coded(labels, values.shape[1]),
        lambda values, labels: 0.5 * (values - coded(labels, values.shape[1])).square().sum(1).mean(),
    ),
}

# --- the local steps of a round ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The local steps of a round.

    ``sign``: 1 if learners fit a gradient, which is subtracted; -1 if they fit the values to reach (FFGB.L). ``residual``: whether a
    learner's residual is added to the target of the next one. ``clip`` (G^2) bounds the learner outputs, ``clip_residual`` (G^1) the
    residual; ``None`` means no clipping.
    """

    etas: Sequence[float]
    mu: float
    sign: int = 1
    residual: bool = True
    clip: float | None = None
    clip_residual: float | None = None


def clipped(values: Tensor, bound: float | None) -> Tensor:
    """Return the values clipped elementwise to [-bound, bound]; ``None`` is no bound."""
    return values if bound is None else values.clamp(-bound, bound)


def boost(
    start: Tensor, direction: Callable[[Tensor], Tensor], fit: Callable[[Tensor], tuple[Any, Tensor]], plan: Plan
) -> tuple[list[Any], Tensor, Tensor]:
    """Run the local steps from the values ``start`` (n, outputs); return (learners, values g^{K+1}, residual Delta^K).

    ``direction(g)``: the functional gradient at g. ``fit(target)``: the oracle; returns a learner and its values (n, outputs).
    """
    g, delta, learners = start, torch.zeros_like(start), []
    for eta in plan.etas:
        wanted = direction(g)
        learner, h = fit(delta + wanted)  # h^k = Q(Delta^{k-1} + grad R[g^k])
        learners.append(learner)
        g = g - eta * (plan.sign * clipped(h, plan.clip) + plan.mu * g)
        if plan.residual:
            delta = clipped(delta + wanted - h, plan.clip_residual)
    return learners, g, delta


# --- the Lipschitz extension of a client's labels ------------------------------------------------------------------------


class LipschitzExtension:
    """``u(x) = min_j (y_j + L ||x - x_j||)`` for x_j (n, ...) and y_j (n, outputs), for each output separately.

    u is L-Lipschitz, and interpolates the labels if they are L-Lipschitz. Distances are computed in blocks, never all n x n.
    """

    def __init__(self, x: Tensor, y: Tensor, constant: float) -> None:
        self.x, self.y, self.constant = x.flatten(1), y, constant

    def __call__(self, points: Tensor) -> Tensor:
        """Return u (m, outputs) at ``points`` (m, ...); differentiable with respect to them."""
        flat = points.flatten(1)
        with torch.no_grad():
            nearest = torch.cat([self._nearest(part) for part in flat.split(max(1, BLOCK // len(self.x)))])
        distances = torch.stack([torch.linalg.vector_norm(flat - self.x[of_one], dim=1) for of_one in nearest.unbind(1)], 1)
        return self.y.gather(0, nearest) + self.constant * distances

    def _nearest(self, points: Tensor) -> Tensor:
        """Return the minimising j (m, outputs)."""
        distances = self.constant * _distances(points, self.x)
        return torch.stack([(distances + column).argmin(1) for column in self.y.unbind(1)], 1)


def least_lipschitz(x: Tensor, y: Tensor) -> tuple[float, tuple[int, int]]:
    """Return the smallest L with ``|y_i - y_j| <= L ||x_i - x_j||`` in every output, and a pair (i, j) that attains it.

    L is infinite if two equal points have different labels.
    """
    x, best, pair = x.flatten(1), 0.0, (0, 0)
    size = max(1, BLOCK // max(1, len(x)))
    for start in range(0, len(x), size):
        rises = torch.cdist(y[start : start + size], y, p=math.inf)
        slopes = torch.where(rises > 0, rises / _distances(x[start : start + size], x), 0.0)
        at = int(slopes.argmax())
        if (slope := float(slopes.flatten()[at])) > best:
            best, pair = slope, (start + at // len(x), at % len(x))
    return best, pair


def lipschitz_constant(x: Tensor, y: Tensor, wanted: float) -> float:
    """Return L: ``wanted``, or the smallest that fits the samples if that is 0. ``ValueError`` names the pair that violates it."""
    least, (i, j) = least_lipschitz(x, y)
    if math.isinf(least):
        raise ValueError(f"samples {i} and {j} are the same point with different labels: no L fits them, leave one out")
    if wanted and least > wanted * (1 + 1e-5):
        raise ValueError(f"lipschitz = {wanted:g} is too small: samples {i} and {j} need {least:.6g}: choose that, or 0")
    return wanted or least


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # The faster way, by a matrix product, loses precision in small distances.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
