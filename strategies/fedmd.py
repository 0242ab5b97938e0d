"""FedMD: clients share the scores of their nets on public samples, and fit the mean of
all. No net is sent, so that each client may have another one.

Source: Li, Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019,
arXiv 1910.03581, Algorithm 1. With the scores (logits) f_i(x) of client i's net and the
public samples x_1 .. x_m:

    server:    f(x_j) = mean over the clients i of a round of f_i(x_j)       consensus
    client i:  minimise  mean over j and classes of |f_i(x_j) - f(x_j)|      digest
               then      its cross-entropy on its own samples               revisit
               then      send f_i(x_1) .. f_i(x_m)

Differences. All public samples are used in every round, and as they have no labels,
nets are not trained on them first. The paper leaves the distance open; the absolute one
is that of the authors' program. A round here is digest, revisit and scores, which is
what a client does between two consensuses of the paper; the first round has none.

Contract. A training message holds ``scores`` (m, C), the consensus, and the
configuration ``fedmd-epochs``. The reply holds the client's own, and ``num-examples``.
Clients have the public samples, in the same order. An evaluation needs no arrays.
"""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import FedMDSent, Reads
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class FedMDOptions(Options):
    """Options of FedMD."""

    epochs: int = option(1, "epochs over the public samples, to fit the consensus", low=1)


class FedMD(FedAvg):
    """FedMD strategy; all clients count alike. ``samples``: m; ``num_classes``: C."""

    client_half: Reads = (FedMDSent,)

    def __init__(
        self,
        samples: int,
        num_classes: int,
        options: FedMDOptions | None = None,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        kwargs.setdefault("weights", "uniform")
        super().__init__(**kwargs)
        self.shape = samples, num_classes
        self.options = options or FedMDOptions()

    @property
    def capabilities(self) -> Capabilities:
        """FedAvg's, of the scores."""
        return replace(
            super().capabilities,
            no_global_model="every client has its own net, and the server their mean scores",
        )

    def first_arrays(self) -> dict[str, NDArray[Any]]:
        """Return no consensus."""
        return {"scores": np.zeros(self.shape, np.float32)}

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Ask for the epochs, once there is a consensus."""
        there = read(self.sent["scores"]).any()
        return FedMDSent(self.options.epochs if there else 0).to_config()
