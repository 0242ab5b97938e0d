"""The base of this package's grids, and a Grid around another: what a subclass does not
change goes through to the wrapped one.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class PulledGrid(Grid):
    """A ``Grid`` whose replies :meth:`pulled` returns, under both names that Flower has
    had for their ids.
    """

    def pull_messages(  # type: ignore[override, unused-ignore]
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> list[Message]:
        """Return the replies that are here to the messages of these ids;
        ``message_ids``: the name before Flower 1.43.
        """
        given = [ids for ids in (reply_to_message_ids, message_ids) if ids is not None]
        if len(given) != 1:
            raise TypeError("pull_messages: give reply_to_message_ids, the ids of your messages")
        return self.pulled(list(given[0]))

    @abstractmethod
    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Return the replies that are here to the messages of these ids."""


class WrappedGrid(PulledGrid):
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

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Pull replies through the wrapped grid."""
        return list(self.grid.pull_messages(numbers))

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
