"""Base of strategies that wrap another one: everything but training is delegated."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.strategies.base.capabilities import is_finished, load_state, state_of
from fedapps.strategies.base.runs_rounds import RunsRounds


class Wrapper(RunsRounds):
    """Base of wrappers, which set ``strategy``, the wrapped strategy."""

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

    @property
    def finished(self) -> bool:
        """Whether the wrapped strategy has ended the run."""
        return is_finished(self.strategy)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the wrapped strategy's state."""
        return state_of(self.strategy)

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        load_state(self.strategy, state)
