"""FedProto: clients share the class means of their nets' representations, the
prototypes, and pull the representations of their samples to everybody's. No net is
sent, so that each client may have another one.

Source: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning
across Heterogeneous Clients", AAAI 2022, arXiv 2105.00243, Algorithm 1. With the
representation h_i(x), the D numbers that the head of client i's net takes, the label y
of a sample and n_ic samples of class c at client i:

    client i:  minimise  cross-entropy + lambda / D ||h_i(x) - P_y||^2
               then      s_ic = sum over its samples of class c of h_i(x)
    server:    P_c = sum_i s_ic / sum_i n_ic

Differences. Equation (6) divides the weighted sum by the number of clients with the
class once more, which would shrink the prototypes; it is left out. The squared distance
is divided by D, as in the authors' program, whose mean over clients is unweighted. A
class that no client of a round has keeps its prototype. A client is scored by its net's
head; the paper takes the class of the nearest prototype.

Contract. A training message holds ``sums`` (C, D) and ``shares`` (C,), whose ratio is
the prototypes; a share of 0: there is none. The reply holds the client's own, divided
by its number of samples, and ``num-examples``: weighted averages are the sums over all
clients, up to a factor. An evaluation needs no arrays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import FedProtoSent, Reads
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class FedProtoOptions(Options):
    """Options of FedProto."""

    lambda_: float = option(
        1.0, "pull of a sample's representation to the prototype of its class", low=0
    )


class FedProto(FedAvg):
    """FedProto strategy. ``num_classes``: C; ``size``: D."""

    client_half: Reads = (FedProtoSent,)

    def __init__(
        self,
        num_classes: int,
        size: int,
        options: FedProtoOptions | None = None,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.size = num_classes, size
        self.options = options or FedProtoOptions()

    @property
    def capabilities(self) -> Capabilities:
        """FedAvg's, of the prototypes."""
        return replace(
            super().capabilities,
            no_global_model="every client has its own net, and the server the prototypes",
        )

    def first_arrays(self) -> dict[str, NDArray[Any]]:
        """Return no prototypes."""
        shape = self.num_classes, self.size
        return {"sums": np.zeros(shape, np.float32), "shares": np.zeros(shape[0], np.float32)}

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send lambda."""
        return FedProtoSent.of(self.options).to_config()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the sums; a class of which no client has samples keeps its own."""
        average, metrics = super().aggregate_train(server_round, replies)
        return average and self.kept(average), metrics

    def kept(self, new: ArrayRecord) -> ArrayRecord:
        """Return sums and shares, those that were sent for classes without a share."""
        there = read(new["shares"]) > 0
        sums = np.where(there[:, None], read(new["sums"]), read(self.sent["sums"]))
        shares = np.where(there, read(new["shares"]), read(self.sent["shares"]))
        return to_record(["sums", "shares"], [sums, shares])
