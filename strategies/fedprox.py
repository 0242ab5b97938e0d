"""FedProx: FedAvg with a proximal term that keeps clients near the model they were
sent.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, Algorithm 2. A client minimises
``F_k(w) + (mu/2) ||w - w^t||^2``: the norm is squared (several public implementations
omit this).

Contract: FedAvg's; the client adds the term with the weight ``proximal-mu`` of the
training configuration.
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import ProximalSent, Reads
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class FedProxOptions(Options):
    """Options of FedProx."""

    mu: float = option(
        0.01, "weight of the proximal term (mu/2) ||w - w_global||^2; 0: FedAvg", low=0
    )


class FedProx(FedAvg):
    """FedProx strategy; the averaging is FedAvg's."""

    client_half: Reads = (ProximalSent,)

    def __init__(
        self, options: FedProxOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or FedProxOptions()
        if not self.options.mu:  # FedAvg
            self.client_half = ()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send mu."""
        return ProximalSent(self.options.mu).to_config()
