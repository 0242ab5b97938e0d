"""APFL: a mixture of the global model and a personal one, with a weight alpha that is
fixed or learned by the client.

Source: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv
2003.13461, Algorithm 1.

Contract: FedAvg's. The client also trains its own model v, which it keeps and
never sends, at the mixture ``alpha v + (1 - alpha) w`` with the model w that it trains
for the server; it is evaluated with the mixture of v and the received model. Both
configurations hold ``apfl-alpha``. If the training configuration holds
``apfl-adaptive`` = true, the client starts with this alpha, learns its own and keeps
it.
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import APFLScoring, APFLTraining, Reads
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class APFLOptions(Options):
    """Options of APFL."""

    alpha: float = option(0.25, "weight of the client's own model in its mixture", low=0, high=1)
    adaptive: bool = option(False, "clients learn alpha; the option alpha is its first value")


class APFL(FedAvg):
    """APFL strategy; the averaging is FedAvg's."""

    client_half: Reads = (APFLTraining,)

    def __init__(
        self, options: APFLOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or APFLOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send alpha, and whether clients learn it."""
        return APFLTraining.of(self.options).to_config()

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send alpha, for clients that have not learned their own."""
        return APFLScoring.of(self.options).to_config()
