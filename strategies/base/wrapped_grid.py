"""A Grid around another: what a subclass does not change goes through to the wrapped
one.
"""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class WrappedGrid(Grid):
    """Passes everything but ``send_and_receive`` on to ``grid``."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        """Return what Flower knows about them."""
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages through the wrapped grid."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies through the wrapped grid."""
        return self.grid.pull_messages(message_ids)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message as the wrapped grid does."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run: Any) -> None:
        """Set the run of the wrapped grid."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the wrapped grid."""
        return self.grid.run
