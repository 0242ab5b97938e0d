"""PropFair's client: local SGD on ``-log(1 - l / M)`` of the mini-batch loss l, which gives large losses larger gradients.

M is sent as ``propfair-m``. The gradient is ``grad l / (M - l)``. Safeguard: below M - l = 0.2 the logarithm is replaced by its tangent
there, so that a loss near or above the baseline M has the finite factor 1 / 0.2. The reported loss is l.

Source: Zhang, Malekmohammadi, Chen, Yu, "Proportional Fairness in Federated Learning", TMLR 2023, arXiv 2202.01666, Algorithm 1.
"""

import math

import torch
from torch import Tensor

from clients.base.training import Config
from clients.fedavg import FedAvgClient

EPSILON = 0.2


class PropFairClient(FedAvgClient):
    """FedAvg's client with PropFair's surrogate loss."""

    def surrogate(self, loss: Tensor, config: Config) -> Tensor:
        """Return ``-log(1 - l / M)``, or its tangent if M - l is below 0.2."""
        m = float(config["propfair-m"])
        inside = -torch.log((m - loss).clamp(min=EPSILON) / m)
        tangent = (loss - m + EPSILON) / EPSILON - math.log(EPSILON / m)
        return torch.where(m - loss >= EPSILON, inside, tangent)
