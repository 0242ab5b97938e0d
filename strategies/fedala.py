"""FedALA: a client starts a round from a mixture of its own model and the received
one, with learned weights, one per parameter.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for
Personalized Federated Learning", AAAI 2023, arXiv 2212.01197, Algorithm 1. With Theta_k
the client's model after its last training and Theta the received one, elementwise and
in the upper layers only (in the others the received parameters are taken):

    m  = Theta_k + W (Theta - Theta_k)
    W <- W - eta grad F_k(m) (Theta - Theta_k), clipped to [0, 1],
         on a part of the client's samples

Contract: FedAvg's. The client keeps Theta_k and W, starts at m and is scored at m. The
configuration holds ``fedala-layers``, ``fedala-rate``, ``fedala-samples``, the share of
the samples, and ``fedala-start-epochs``, passes the first time that W is learned.
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import FedALASent, Reads
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class FedALAOptions(Options):
    """Options of FedALA."""

    layers: int = option(
        1, "upper layers that are mixed; the other layers take the received parameters", low=0
    )
    rate: float = option(
        1.0, "learning rate of the weights; 0: they stay at 1, which is FedAvg", low=0
    )
    samples: float = option(
        0.8,
        "share of a client's samples on which the weights are learned",
        low=0,
        high=1,
        open_low=True,
    )
    start_epochs: int = option(
        10, "passes over these samples the first time; later one pass", low=1
    )


class FedALA(FedAvg):
    """FedALA strategy; the averaging is FedAvg's."""

    client_half: Reads = (FedALASent,)

    def __init__(
        self, options: FedALAOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or FedALAOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send how the weights are learned."""
        return FedALASent.of(self.options).to_config()

    evaluate_options = train_options
