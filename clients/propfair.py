"""PropFair's client: local SGD on ``-log(1 - l / M)`` of the mini-batch loss l, so that a client with a large loss pulls harder.

Source: Zhang et al. 2022, "Proportional Fairness in Federated Learning", Algorithm 1. M arrives as ``propfair-m``. The gradient is
``grad l / (M - l)``. Safeguard: the logarithm ends at M - l = 0.2 and goes on as its tangent, so that a loss near or above the baseline
M has the finite pull 1 / 0.2. The loss that is reported is l.
"""

import math

import torch
from torch import Tensor

from clients.base.training import Config
from clients.fedavg import FedAvgClient

EPSILON = 0.2


class PropFairClient(FedAvgClient):
    """FedAvg's client with PropFair's loss."""

    def surrogate(self, loss: Tensor, config: Config) -> Tensor:
        """Return ``-log(1 - l / M)``, or its tangent where M - l is below 0.2."""
        m = float(config["propfair-m"])
        inside = -torch.log((m - loss).clamp(min=EPSILON) / m)
        tangent = (loss - m + EPSILON) / EPSILON - math.log(EPSILON / m)
        return torch.where(m - loss >= EPSILON, inside, tangent)
