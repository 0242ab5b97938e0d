"""FedBABU: the clients train the body under a fixed head; a client fine-tunes the
model before it uses it.

Source: Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022, arXiv 2106.06042, Algorithm 1. The head is the random one of
the initial model, the same for all.

Contract: a training reply holds the arrays of the body, which were sent, and
``num-examples``. The configuration holds ``share`` ("body"); that of an evaluation also
``fedbabu-epochs`` and ``fedbabu-part``, for how many epochs which part is fine-tuned
before it is scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import FedBABUSent, Reads
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.fedavg import FedAvgArguments
from fedapps.strategies.partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedBABUOptions(Options):
    """Options of FedBABU."""

    epochs: int = option(1, "local epochs of fine-tuning before use", low=0)
    part: str = option("all", "what is fine-tuned", choices=["all", "head", "body"])


class FedBABU(PartialSharing):
    """FedBABU strategy."""

    client_half: Reads = (FedBABUSent,)

    def __init__(
        self,
        head: Sequence[str],
        options: FedBABUOptions | None = None,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(head, "body", **kwargs)
        self.options = options or FedBABUOptions()

    @property
    def capabilities(self) -> Capabilities:
        """FedAvg's: the body is trained under the random head, so that they fit."""
        return replace(super().capabilities, no_global_model="")

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send which part is shared, and the options of fine-tuning."""
        shared = super().evaluate_options(server_round, num_rounds)
        return {**shared, **FedBABUSent.of(self.options).to_config()}
