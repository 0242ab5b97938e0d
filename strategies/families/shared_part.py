"""Base of the methods that average some arrays of the model and leave the others with
the clients.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.fedavg import FedAvg


class SharedPart(FedAvg):
    """Sends and averages the arrays that :meth:`travels` names; in the server's model
    the others keep their initial values.
    """

    _model = ArrayRecord()

    @property
    def capabilities(self) -> Capabilities:
        """FedAvg's, of the shared part."""
        return replace(
            super().capabilities,
            no_global_model="the server's model lacks the trained arrays that clients keep",
        )

    @abstractmethod
    def travels(self, name: str) -> bool:
        """Return whether the array of this name is shared."""

    def check(self, names: Sequence[str]) -> None:
        """Raise ``ValueError`` unless some of these arrays are shared."""
        if not any(map(self.travels, names)):
            raise ValueError(
                f"none of the arrays is shared: share at least one of {', '.join(names)}"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the shared part."""
        self._model = arrays
        return super().configure_train(server_round, self.shared(arrays), config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the shared part."""
        return super().configure_evaluate(server_round, self.shared(arrays), config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the shared part."""
        average, metrics = super().aggregate_train(server_round, replies)
        return None if average is None else ArrayRecord({**self._model, **average}), metrics

    def shared(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the shared part. Raises ``ValueError`` if :meth:`check` rejects the
        arrays.
        """
        self.check(list(arrays))
        return ArrayRecord({name: array for name, array in arrays.items() if self.travels(name)})
