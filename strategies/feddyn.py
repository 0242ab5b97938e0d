"""FedDyn: linear correction terms at clients and server, with which the local optima
agree with the global one at the fixed point.

Sources: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning
Based on Dynamic Regularization", ICLR 2021, arXiv 2111.04263, Algorithm 1. With full
participation it equals FedPD: Zhang, Hong, Dhople, Yin, Liu, "FedPD: A Federated
Learning Framework with Optimal Rates and Adaptivity to Non-IID Data", 2020, arXiv
2005.11418 (see Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting",
AISTATS 2022, arXiv 2103.06972, section 6). With S the clients of the round and m the
number of all clients:

    client i in S:
        theta_i = argmin f_i(theta) - <g_i, theta> + (alpha/2) ||theta - theta^{t-1}||^2
        g_i <- g_i - alpha (theta_i - theta^{t-1})
    server:
        h <- h - (alpha/m) sum_{i in S} (theta_i - theta^{t-1})
        theta^t = (1/|S|) sum_{i in S} theta_i - h / alpha

h is the mean of all clients' g_i; the program of Shen et al. omits it and stalls unless
every client takes part in every round. Counters and running statistics of normalisation
layers are averaged.

Contract: FedAvg's with uniform weights; the training configuration holds
``feddyn-alpha``, and each client stores its g_i.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import FedDynSent, Reads
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.named_grid import clients_of
from fedapps.strategies.base.updates import moved, updates
from fedapps.strategies.fedavg import FedAvg, FlowerArguments


@dataclass(frozen=True)
class FedDynOptions(Options):
    """Options of FedDyn."""

    alpha: float = option(
        0.1,
        "weight of the proximal term; a smaller value lets a round go further",
        low=0,
        open_low=True,
    )


class FedDyn(FedAvg):
    """FedDyn strategy."""

    client_half: Reads = (FedDynSent,)
    capabilities = Capabilities(
        replies="model", aggregation="single replies", subset=True, sums=True
    )
    #: Why its clients cannot end a round early (``strategies.base.partial_work``).
    needs_all_steps = "its duals take the local problem for solved, which it is not yet"

    def __init__(
        self, options: FedDynOptions | None = None, **kwargs: Unpack[FlowerArguments]
    ) -> None:
        super().__init__(weights="uniform", **kwargs)
        self.options = options or FedDynOptions()
        #: h of the learned arrays, concatenated; None before the first round.
        self.h: NDArray[np.float64] | None = None
        self._num_clients = 0

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send alpha."""
        return FedDynSent(self.options.alpha).to_config()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model; remember the number of all clients."""
        self._num_clients = len(clients_of(grid))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update h and correct the average with it."""
        valid = self.answered(replies)
        average, metrics = super().aggregate_train(server_round, valid)
        if average is None:
            return None, metrics
        (mean,) = updates(self.sent, [average])
        alpha, share = self.options.alpha, len(valid) / max(self._num_clients, len(valid))
        h = np.zeros_like(mean) if self.h is None else self.h
        self.h = h - alpha * share * mean
        return moved(self.sent, mean - self.h / alpha, average), metrics

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return h."""
        return {} if self.h is None else {"h": self.h}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.h = state.get("h")
