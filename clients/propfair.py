"""PropFair's local loss: SGD on ``-log(1 - l / M)`` of the mini-batch loss l, which
gives large losses larger gradients.

M is sent as ``propfair-m``. The gradient is ``grad l / (M - l)``. Safeguard: below M -
l = 0.2 the logarithm is replaced by its tangent there, so that a loss near or above the
baseline M has the finite factor 1 / 0.2. The reported loss is l.

``PropFairClient`` is FedAvg's client with this loss; ``proportional(kind)`` is any
other class of clients whose training differentiates ``surrogate`` throughout, which it
declares with ``differentiates_surrogate``.

Source: Zhang, Malekmohammadi, Chen, Yu, "Proportional Fairness in Federated Learning",
TMLR 2023, arXiv 2202.01666, Algorithm 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedapps.algorithms.contract.sent import PropFairSent, Reads
from fedapps.clients.base.training import Config
from fedapps.clients.fedavg import FedAvgClient
from fedapps.clients.steps.trained_net import OWN_TRAINING

EPSILON = 0.2


@dataclass(frozen=True)
class Proportional:
    """``-log(1 - l / M)`` of a loss l, or its tangent if M - l is below 0.2."""

    m: float

    def __call__(self, loss: Tensor) -> Tensor:
        """Return the value."""
        inside = -torch.log((self.m - loss).clamp(min=EPSILON) / self.m)
        tangent = (loss - self.m + EPSILON) / EPSILON - math.log(EPSILON / self.m)
        return torch.where(self.m - loss >= EPSILON, inside, tangent)


class ProportionalLoss:
    """Mixin for client classes."""

    reads: Reads = (PropFairSent,)
    excluded_optimizers: Mapping[str, str] = dict.fromkeys(
        ("adam", "adamw"),
        "PropFair gives clients with a large loss larger gradients, and Adam divides gradients by "
        "their size: choose sgd",
    )

    def surrogate(self, config: Config) -> Proportional:
        """Return PropFair's function of the mini-batch's loss."""
        return Proportional(PropFairSent.from_config(config).m)


def differentiates(kind: type[FedAvgClient]) -> bool:
    """Return whether the class in which clients train declares that it differentiates
    the surrogate of the loss.
    """
    return bool(vars(_trainer(kind)).get("differentiates_surrogate", False))


def _trainer(kind: type[FedAvgClient]) -> type:
    return next(base for base in kind.__mro__ if OWN_TRAINING & vars(base).keys())


@lru_cache
def proportional(kind: type[FedAvgClient]) -> type[FedAvgClient]:
    """Return the class ``kind`` with PropFair's loss; raises ``ValueError`` if its
    training does not declare to differentiate it.
    """
    if not differentiates(kind):
        raise ValueError(
            f"{_trainer(kind).__name__} has its own training and does not declare that it "
            "differentiates surrogate(config)(loss): do so, and set "
            "differentiates_surrogate = True beside it"
        )
    return type(
        f"PropFair{kind.__name__}",
        (ProportionalLoss, kind),
        {"__doc__": f"{kind.__name__} with PropFair's loss."},
    )


class PropFairClient(ProportionalLoss, FedAvgClient):
    """FedAvg's client with PropFair's loss."""
