"""FedProx's client: local SGD on the loss plus ``(mu/2) ||w - w^t||^2``, w^t being the
received model.

mu is sent as ``proximal-mu``. The gradient of the term is ``mu (w - w^t)``.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, Algorithm 2.
"""

from collections.abc import Sequence

from torch import Tensor

from clients.base.training import Config
from clients.fedavg import FedAvgClient
from clients.steps.sgd import Terms


class FedProxClient(FedAvgClient):
    """FedAvg's client with a proximal term."""

    def penalty(self, tensors: Sequence[Tensor], config: Config) -> tuple[float, Terms]:
        """Return the gradient of the proximal term: ``mu w - mu w^t``."""
        mu = float(config.get("proximal-mu", 0.0))
        return (mu, [([t.clone() for t in tensors], -mu)]) if mu else (0.0, [])
