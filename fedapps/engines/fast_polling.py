"""A Grid that returns replies sooner than Flower's own, and an error for a reply that
will not come.

In a deployment, Flower sleeps three seconds between two polls. In a simulation it
sleeps 0.1 s, and hands out messages every 0.1 s; here both wait for messages and
replies themselves, because these are stored in this process.

From Flower 1.43 on, a SuperLink says nothing of a message whose node has left, nor of a
reply that broke off on its way: it would be waited for until the timeout.
"""

import time
from collections.abc import Collection, Iterable
from copy import copy

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedapps.strategies.base.flower_private import ErrorCode, LeftOut, stored_messages
from fedapps.strategies.base.named_grid import WrappedGrid

# Seconds between two polls: a share of the time waited so far, within these limits. A
# long phase then needs few polls.
SHARE, LEAST, MOST = 0.1, 0.1, 3.0


class PollingGrid(WrappedGrid):
    """Wraps ``grid``: changes the waiting of ``send_and_receive``, and adds the errors
    that a deployment does not send.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.stored = stored_messages(grid)
        self._asked: dict[str, Message] = {}  # messages without a reply, less their contents
        # by the number of a reply without content: the messages of which it answers one
        self._broken: dict[str, set[str]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return the replies that arrive within ``timeout`` seconds
        (None: wait for all).
        """
        # Flower returns None or "" for a message it could not send
        waiting = {one for one in self.push_messages(messages) if one}
        begin, replies = time.monotonic(), list[Message]()
        while waiting:
            arrived = self.pulled(waiting)
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

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push messages; in a simulation, none is handed out before all are there."""
        if self.stored:
            with self.stored.together():
                return list(self.grid.push_messages(messages))
        sent = list(messages)
        numbers = list(self.grid.push_messages(sent))
        taken = set(numbers)
        for message in sent:
            if message.metadata.message_id in taken:
                question = self._asked[message.metadata.message_id] = copy(message)
                question.content = RecordDict()
        return numbers

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Return the replies that are here, and an error for what will not come."""
        if self.stored:
            return super().pulled(numbers)
        here = set(self.grid.get_node_ids())  # first: who leaves may have answered before
        with LeftOut() as left_out:
            replies = super().pulled(numbers)
        for reply in replies:
            self._broken.pop(reply.metadata.message_id, None)
            self._forget(reply)
        waiting = [self._asked[number] for number in numbers if number in self._asked]
        for number in left_out.numbers:
            self._broken.setdefault(number, {one.metadata.message_id for one in waiting})
        lost = self._lost()
        for question in waiting:
            if question.metadata.message_id in lost:
                error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply broke off on its way")
            elif question.metadata.dst_node_id not in here:
                error = Error(ErrorCode.NODE_UNAVAILABLE, "the node is no longer connected")
            else:
                continue
            replies.append(Message(error, reply_to=question))
            self._forget(replies[-1])
        return replies

    def _forget(self, reply: Message) -> None:
        number = reply.metadata.reply_to_message_id
        self._asked.pop(number, None)
        for among in self._broken.values():
            among.discard(number)
        self._broken = {broken: among for broken, among in self._broken.items() if among}

    def _lost(self) -> set[str]:
        """Return the messages whose reply is broken for certain: of a set of messages,
        as many replies are.
        """
        groups = list(self._broken.values())
        sure = [one for one in groups if sum(other <= one for other in groups) >= len(one)]
        return set().union(*sure)
