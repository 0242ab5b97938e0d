"""Ditto: FedAvg, and for each client a personal model with a proximal term towards the
global one.

Source: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv 2012.04221, Algorithm 1.

Contract: FedAvg's. The client also trains a personal v, with ``(mu/2) ||v - w||^2``
added to its loss, w being the received model; it keeps v, is evaluated with it and
never sends it. The training configuration holds ``ditto-mu`` and ``ditto-epochs``, the
epochs on v (0: as many as on w).
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.personal import DittoSent
from fedapps.algorithms.contract.sent import Reads
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class DittoOptions(Options):
    """Options of Ditto."""

    mu: float = option(
        1.0, "weight of the pull (mu/2) ||v - w||^2 of the personal model to the global one", low=0
    )
    epochs: int = option(5, "local epochs on the personal model; 0: train.local-epochs", low=0)


class Ditto(FedAvg):
    """Ditto strategy; the averaging is FedAvg's."""

    client_half: Reads = (DittoSent,)

    def __init__(
        self, options: DittoOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or DittoOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send mu and the number of epochs on the personal model."""
        return DittoSent.of(self.options).to_config()
