"""FedProx's client: local SGD on the loss plus ``(mu/2) ||w - w^t||^2``, w^t the model it was sent.

Source: Li et al. 2020, Algorithm 2. mu arrives as ``proximal-mu``. The norm is squared, so the term's gradient is ``mu (w - w^t)``.
"""

from collections.abc import Sequence

from torch import Tensor

from clients.base.training import Config, Terms
from clients.fedavg import FedAvgClient


class FedProxClient(FedAvgClient):
    """FedAvg's client with the proximal term."""

    def penalty(self, tensors: Sequence[Tensor], config: Config) -> tuple[float, Terms]:
        """Return the proximal gradient in parts: ``mu w - mu w^t``."""
        mu = float(config.get("proximal-mu", 0.0))
        return (mu, [([t.clone() for t in tensors], -mu)]) if mu else (0.0, [])
