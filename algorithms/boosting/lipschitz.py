"""The Lipschitz extension of a client's labels, which FFGB.L's learners approximate,
and the constant that it needs.

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", first
version, 2021, arXiv 2103.06972v1, Algorithm 4.
"""

import math

import torch
from torch import Tensor

#: Largest number of pairwise distances held in memory at once.
BLOCK = 4_000_000


class LipschitzExtension:
    """``u(x) = min_j (y_j + L ||x - x_j||)`` for x_j (n, ...) and y_j (n, outputs), for
    each output separately.

    u is L-Lipschitz, and interpolates the labels if they are L-Lipschitz. Distances are
    computed in blocks, never all n x n.
    """

    def __init__(self, x: Tensor, y: Tensor, constant: float) -> None:
        self.x, self.y, self.constant = x.flatten(1), y, constant

    def __call__(self, points: Tensor) -> Tensor:
        """Return u (m, outputs) at ``points`` (m, ...); differentiable with respect to
        them.
        """
        flat = points.flatten(1)
        with torch.no_grad():
            nearest = torch.cat(
                [self._nearest(part) for part in flat.split(max(1, BLOCK // len(self.x)))]
            )
        distances = torch.stack(
            [
                torch.linalg.vector_norm(flat - self.x[of_one], dim=1)
                for of_one in nearest.unbind(1)
            ],
            1,
        )
        return self.y.gather(0, nearest) + self.constant * distances

    def _nearest(self, points: Tensor) -> Tensor:
        """Return the minimising j (m, outputs)."""
        distances = self.constant * _distances(points, self.x)
        return torch.stack([(distances + column).argmin(1) for column in self.y.unbind(1)], 1)


def least_lipschitz(x: Tensor, y: Tensor) -> tuple[float, tuple[int, int]]:
    """Return the smallest L with ``|y_i - y_j| <= L ||x_i - x_j||`` in every output,
    and a pair (i, j) that attains it.

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
    """Return L: ``wanted``, or the smallest that fits the samples if that is 0.
    ``ValueError`` names the pair that violates it.
    """
    least, (i, j) = least_lipschitz(x, y)
    if math.isinf(least):
        raise ValueError(
            f"samples {i} and {j} are the same point with different labels: no L fits them, leave "
            "one out"
        )
    if wanted and least > wanted * (1 + 1e-5):
        raise ValueError(
            f"lipschitz = {wanted:g} is too small: samples {i} and {j} need {least:.6g}: choose "
            "that, or 0"
        )
    return wanted or least


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # The faster way, by a matrix product, loses precision in small distances.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
