"""A Grid that polls for replies more often than Flower's own in a deployment, which sleeps three seconds between polls."""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

# Seconds between two polls: a fraction of the time waited so far, so that a long phase needs few polls; and its bounds.
SHARE, LEAST, MOST = 0.1, 0.1, 3.0


class PollingGrid(Grid):
    """Wraps ``grid``; differs from it only in the polling interval of ``send_and_receive``."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that arrive within ``timeout`` seconds (None: wait for all)."""
        waiting = {one for one in self.grid.push_messages(messages) if one}  # Flower returns None for a message it could not send
        begin, replies = time.monotonic(), list[Message]()
        while waiting:
            found = list(self.grid.pull_messages(waiting))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            waited = time.monotonic() - begin
            if not waiting or (timeout is not None and waited >= timeout):
                break
            pause = min(max(LEAST, SHARE * waited), MOST)
            time.sleep(pause if timeout is None else min(pause, max(timeout - waited, 0.0)))
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages through the wrapped grid."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies through the wrapped grid."""
        return self.grid.pull_messages(message_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
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
