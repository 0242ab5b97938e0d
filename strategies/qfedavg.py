"""q-FedAvg: clients are weighted by their loss to the power q, with a step size from a Lipschitz estimate.

Source: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020, arXiv 1905.10497, Algorithm 2. With
F_k the loss of the model that was sent and L one over the local learning rate:

    Delta_k = L (w - w_k)                                         client k's pseudo-gradient
    h_k     = q F_k^(q-1) |Delta_k|^2 + L F_k^q                   its share of the Lipschitz constant of (1/(q+1)) sum F^(q+1)
    w       <- w - sum_k F_k^q Delta_k / sum_k h_k

q = 0 is the uniform average. L follows the local learning rate and its decay, which the training configuration holds.

Differences from Flower's QFedAvg, which has the same formula: it keeps the first round's L while the clients' learning rate decays,
computes the norm over counters and running statistics too, and reads ``train_loss``, which does not specify the model it refers to.

Contract: FedAvg's; in addition the reply holds ``loss-before``, the mean training loss of the model as it was received, requested by
``loss-before`` = true in the training configuration.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from algorithms.common.options import Options, option
from algorithms.common.schedule import decayed
from strategies.base.capabilities import Capabilities
from strategies.base.client_grid import ClientId, clients_of
from strategies.base.messages import LOSS_BEFORE, arrays_of, valid_losses
from strategies.base.records import average_arrays
from strategies.base.updates import moved, updates
from strategies.fedavg import FedAvg

# Added to the losses, so that F^(q-1) is finite for a client with zero loss.
LEAST_LOSS = 1e-10


@dataclass(frozen=True)
class QFedAvgOptions(Options):
    """Options of q-FedAvg."""

    q: float = option(0.1, "clients count by their loss to this power; 0: the uniform average", low=0)
    lipschitz: float = option(0.0, "L; 0: one over the learning rate of the round", low=0)


class QFedAvg(FedAvg):
    """q-FedAvg strategy."""

    capabilities = Capabilities(replies="model", aggregation="single replies", subset=True)

    def __init__(self, options: QFedAvgOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or QFedAvgOptions()
        self.last_weights: dict[ClientId, float] = {}
        self._names: dict[int, ClientId] = {}
        self._sent = ArrayRecord()
        self._lipschitz = 0.0

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Request the loss of the model that is sent."""
        return {LOSS_BEFORE: True}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Remember the model and the learning rate; raise ``ValueError`` if neither options nor configuration give one."""
        if not self.options.lipschitz and "learning-rate" not in config:
            raise ValueError(
                "q-FedAvg needs the clients' learning rate: put learning-rate into train_config, or set lipschitz = 1 / it"
            )
        self._names, self._sent = clients_of(grid), arrays
        self._lipschitz = self.options.lipschitz or 1 / rate_of(config, server_round)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the server step; metrics are averaged by ``num-examples``."""
        heard = [(self._names[reply.metadata.src_node_id], reply) for reply in replies if not reply.has_error()]
        valid = valid_losses(heard)
        if not valid:
            self.last_weights = {}
            return None, None
        contents = [reply.content for _, reply, _ in valid]
        losses = np.array([loss for *_, loss in valid]) + LEAST_LOSS
        # Losses are divided by the largest, which cancels in the quotient, so that no power of a loss overflows.
        top, q, lipschitz = losses.max(), self.options.q, self._lipschitz
        powers = (losses / top) ** q
        deltas = -lipschitz * updates(self._sent, [arrays_of(content)[0] for content in contents])
        h = q * powers / losses * (deltas**2).sum(1) + lipschitz * powers
        shares = powers / powers.sum()
        self.last_weights = {client: float(share) for (client, *_), share in zip(valid, shares, strict=True)}
        arrays = moved(self._sent, -(powers @ deltas) / h.sum(), average_arrays(contents, shares.tolist()))
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        facts = {"objective": float(shares @ losses), "weight-max": float(shares.max())}
        return arrays, MetricRecord({**metrics, **facts})


def rate_of(config: ConfigRecord, server_round: int) -> float:
    """Return the local learning rate of a round from a training configuration."""
    rate, decay, every = (float(str(config.get(key, 1.0))) for key in ("learning-rate", "lr-decay", "lr-decay-every"))
    return decayed(rate, decay, int(every), server_round)
