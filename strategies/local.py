"""Local: every client trains alone, without federation; the baseline of personalised
methods.

A federated method that samples m of N clients for a round has each of them train in
rounds * m / N rounds on average. Here every client trains in every round, for the share
m / N of a round's steps. At any evaluation it has therefore taken as many steps as a
client of that method on average. No models are exchanged in training; the server's
model remains the initial one.

Contract: a training reply holds no arrays and one MetricRecord with ``num-examples``.
The configuration holds ``local-share``, the share of a round's steps that the client
takes; a fraction of a step is carried over to later rounds.
"""

from collections.abc import Iterable
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.algorithms.contract.sent import LocalSent
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.named_grid import clients_of
from fedapps.strategies.fedavg import FedAvg


class Local(FedAvg):
    """Strategy of local training: asks all clients for their share of the round's steps
    and collects metrics.
    """

    capabilities = Capabilities(
        replies="other",
        aggregation="single replies",
        no_global_model="every client trains alone, and the server's model stays untrained",
    )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every client to train for as many steps as a sampled one would on
        average; send no model.
        """
        sampled = len(self._sample(grid, server_round, MessageType.TRAIN))
        everyone = list(clients_of(grid)) if sampled else []
        share = sampled / len(everyone) if everyone else 0.0
        asked = self.asked(share)
        log(INFO, "configure_train: all %d nodes train: %s", len(everyone), asked)
        config.update({"server-round": server_round, **asked})
        return self._messages(ArrayRecord(), config, everyone, MessageType.TRAIN)

    def asked(self, share: float) -> dict[str, bool | int | float | str]:
        """Return what a training message asks for; ``share``: of a round's steps."""
        return LocalSent(share).to_config()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the metrics only."""
        contents = [reply.content for reply in self.answered(replies)]
        return None, self.train_metrics_aggr_fn(
            contents, self.weighted_by_key
        ) if contents else None
