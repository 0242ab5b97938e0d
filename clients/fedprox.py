"""FedProx's client: local SGD on the loss plus ``(mu/2) ||w - w^t||^2``, w^t being the
received model.

mu is sent as ``proximal-mu``. The gradient of the term is ``mu (w - w^t)``.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, Algorithm 2.
"""

from fedapps.algorithms.common.steps import Tensors
from fedapps.algorithms.contract.sent import ProximalSent, Reads
from fedapps.clients.base.training import Config
from fedapps.clients.fedavg import FedAvgClient
from fedapps.clients.steps.sgd import Penalty


class FedProxClient(FedAvgClient):
    """FedAvg's client with a proximal term."""

    reads: Reads = (ProximalSent,)

    def penalty(self, tensors: Tensors, config: Config) -> Penalty:
        """Return the gradient of the proximal term, ``mu (w - w^t)``."""
        mu = ProximalSent.from_config(config).mu
        return Penalty(mu, [t.clone() for t in tensors])
