"""A Grid that returns replies sooner than Flower's own.

In a deployment, Flower sleeps three seconds between two polls. In a simulation it
sleeps 0.1 s, and hands out messages every 0.1 s; here both wait for messages and
replies themselves, because these are stored in this process.
"""

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from fedapps.strategies.base.flower_private import stored_messages
from fedapps.strategies.base.wrapped_grid import WrappedGrid

# Seconds between two polls: a share of the time waited so far, within these limits. A
# long phase then needs few polls.
SHARE, LEAST, MOST = 0.1, 0.1, 3.0


class PollingGrid(WrappedGrid):
    """Wraps ``grid`` and changes only the waiting of ``send_and_receive``."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.stored = stored_messages(grid)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies that arrive within ``timeout`` seconds
        (None: wait for all).
        """
        # Flower returns None or "" for a message it could not send
        waiting = {one for one in self._push(messages) if one}
        begin, replies = time.monotonic(), list[Message]()
        while waiting:
            arrived = list(self.grid.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            waited = time.monotonic() - begin
            if not waiting or (timeout is not None and waited >= timeout):
                break
            pause = min(max(LEAST, SHARE * waited), MOST)
            if timeout is not None:
                pause = min(pause, max(timeout - waited, 0.0))
            if self.stored:
                self.stored.wait_for_replies(waiting, pause)
            else:
                time.sleep(pause)
        return replies

    def _push(self, messages: Iterable[Message]) -> Iterable[str]:
        if not self.stored:
            return self.grid.push_messages(messages)
        with self.stored.together():
            return self.grid.push_messages(messages)
