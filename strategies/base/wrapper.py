"""Base of strategies that wrap another one: everything but training is delegated."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.base.rounds import RunsRounds


class Wrapper(RunsRounds):
    """Base of ``Reweighting``, ``PropFair`` and ``Private``, which set ``strategy``,
    the wrapped strategy.
    """

    strategy: Strategy

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Delegate to the wrapped strategy."""
        self.strategy.summary()
