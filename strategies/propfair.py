"""PropFair: FedAvg whose clients minimise ``-log(M - F)``: maximises the product of the clients' utilities M - F (Nash bargaining).

Source: Zhang, Malekmohammadi, Chen, Yu, "Proportional Fairness in Federated Learning", TMLR 2023, arXiv 2202.01666, Algorithm 1. A
client's steps are taken on ``-log(1 - l / M)`` of the mini-batch loss l; the server averages as FedAvg does. The gradient is that of
FedAvg divided by M - l: a large M needs a learning rate M times as large for the same steps.

Contract: FedAvg's; the client minimises that loss with M = ``propfair-m`` of the training configuration.
"""

from dataclasses import dataclass
from typing import Any

from algorithms.common.options import Options, option
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class PropFairOptions(Options):
    """Options of PropFair."""

    m: float = option(3.0, "baseline M, above the losses that clients have", low=0, open_low=True)


class PropFair(FedAvg):
    """PropFair strategy; the averaging is FedAvg's."""

    def __init__(self, options: PropFairOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or PropFairOptions()

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send M."""
        return {"propfair-m": self.options.m}
