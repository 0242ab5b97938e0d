"""What strategies that wrap another one leave to it: everything but training."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from strategies.base.rounds import run_rounds


class Wrapper(Strategy):
    """Base of ``Reweighting`` and ``Private``, which set ``strategy``, the one that they wrap."""

    strategy: Strategy

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Leave evaluation to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Leave the summary to the wrapped strategy."""
        self.strategy.summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds; arguments as in :func:`strategies.base.rounds.run_rounds`."""
        return run_rounds(self, *args, **kwargs)
