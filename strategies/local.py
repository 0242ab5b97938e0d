"""Local: every client trains alone, without federation; the baseline of personalised methods.

The schedule is that of a federated method (the sampled clients train in each round, for as many steps), but no models are exchanged in
training. The server's model remains the initial one.

Contract: a training reply holds no arrays and one MetricRecord with ``num-examples``.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from strategies.base.capabilities import Capabilities
from strategies.fedavg import FedAvg


class Local(FedAvg):
    """Strategy of local training: samples clients and collects metrics."""

    capabilities = Capabilities(replies="other", aggregation="single replies")

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Ask the sampled clients to train; send no model."""
        return super().configure_train(server_round, ArrayRecord(), config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the metrics only."""
        contents = [message.content for message in replies if not message.has_error()]
        return None, self.train_metrics_aggr_fn(contents, self.weighted_by_key) if contents else None
