"""A Grid that polls for replies more often than Flower's own in a deployment, which
sleeps three seconds between polls.
"""

import time
from collections.abc import Iterable

from flwr.app import Message

from strategies.base.wrapped_grid import WrappedGrid

# Seconds between two polls: a share of the time waited so far, within these limits. A
# long phase then needs few polls.
SHARE, LEAST, MOST = 0.1, 0.1, 3.0


class PollingGrid(WrappedGrid):
    """Wraps ``grid`` and changes only the polling interval of ``send_and_receive``."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies that arrive within ``timeout`` seconds
        (None: wait for all).
        """
        # Flower returns None for a message it could not send
        waiting = {one for one in self.grid.push_messages(messages) if one}
        begin, replies = time.monotonic(), list[Message]()
        while waiting:
            arrived = list(self.grid.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            waited = time.monotonic() - begin
            if not waiting or (timeout is not None and waited >= timeout):
                break
            pause = min(max(LEAST, SHARE * waited), MOST)
            time.sleep(pause if timeout is None else min(pause, max(timeout - waited, 0.0)))
        return replies
