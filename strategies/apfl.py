"""APFL: a mixture of the global model and the client's own, whose weight alpha is fixed or learned by the client.

Source: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461, Algorithm 1.

Contract: FedAvg's. What a client keeps never leaves it.
"""

from dataclasses import dataclass
from typing import Any

from algorithms.common.options import Options, option
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class APFLOptions(Options):
    """Options of APFL."""

    alpha: float = option(0.25, "weight of the client's own model in its mixture", low=0, high=1)
    adaptive: bool = option(False, "clients learn alpha, starting there")


class APFL(FedAvg):
    """Server half of APFL."""

    def __init__(self, options: APFLOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or APFLOptions()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send alpha and whether it is learned."""
        return {"apfl-alpha": self.options.alpha, "apfl-adaptive": self.options.adaptive}

    def evaluate_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send the alpha of a client that has not learned one."""
        return {"apfl-alpha": self.options.alpha}
