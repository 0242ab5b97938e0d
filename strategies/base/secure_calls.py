"""Questions of secure sums to nodes: what is sent and comes back, the bytes of it, and
which nodes have failed, and why.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedapps.algorithms.secure.wire import QUERY, RECORD, packed, unpacked
from fedapps.strategies.base.messages import content_bytes, trains
from fedapps.strategies.base.roster import KnowingClients, Numbered, Travel
from fedapps.strategies.base.wrapped_grid import WrappedGrid


class SecureCalls(WrappedGrid):
    """Base of ``SecureGrid``: its messages through ``grid``."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        #: Messages and bytes of the last phase, all of them included.
        self.travel = Travel()
        #: Nodes that may have lost their state, and what is wrong with nodes by now.
        self.failed: set[int] = set()
        self.faults: dict[int, str] = {}

    def known_clients(self) -> Numbered | None:
        """Return the clients that the wrapped grid knows."""
        return self.grid.known_clients() if isinstance(self.grid, KnowingClients) else None

    def ask(
        self, questions: Mapping[int, Mapping[str, Any]], timeout: float | None
    ) -> dict[int, Any]:
        """Send each node its question; return the answers that can be read."""
        answers = {}
        for node, reply in self.replies(queries(questions), timeout).items():
            with self.noted(node):
                answers[node] = unpacked(reply[RECORD])
        return answers

    def replies(self, messages: Iterable[Message], timeout: float | None) -> dict[int, RecordDict]:
        """Send messages; return the contents of the replies by node, and note the
        faults of the others.
        """
        sent = list(messages)
        waited = f"no answer within {timeout:g} s" if timeout else "no answer"
        self.faults |= {message.metadata.dst_node_id: waited for message in sent}
        replies = {
            reply.metadata.reply_to_message_id: reply for reply in self.exchange(sent, timeout)
        }
        out = {}
        for message in sent:
            node, reply = message.metadata.dst_node_id, replies.get(message.metadata.message_id)
            if reply is None:
                continue
            if reply.has_error():
                self.faults[node] = reply.error.reason or f"error code {reply.error.code}"
            else:
                del self.faults[node]
                out[node] = reply.content
        self.failed |= self.faults.keys()
        return out

    def exchange(self, sent: list[Message], timeout: float | None) -> list[Message]:
        """Send messages and return the replies; count both."""
        if not sent:
            return []
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        now = getattr(self.grid, "travel", None) or Travel(
            len(sent),
            sum(content_bytes(message.content) for message in sent),
            sum(content_bytes(reply.content) for reply in replies if reply.has_content()),
        )
        self.travel = Travel(
            self.travel.messages + now.messages,
            self.travel.down + now.down,
            self.travel.up + now.up,
            summed=trains(sent[0]) or self.travel.summed,
        )
        return replies

    @contextmanager
    def noted(self, node: int) -> Iterator[None]:
        """Take whatever is wrong with an answer for a fault of its node."""
        try:
            yield
        except Exception as error:
            text = " ".join(str(error).split())[:300] or type(error).__name__
            self.failed.add(node)
            self.faults[node] = f"its part of a secure sum cannot be used: {text}"


def queries(questions: Mapping[int, Mapping[str, Any]]) -> list[Message]:
    """Return the messages for nodes, of which many may get the same facts."""
    records = {id(facts): ConfigRecord(packed(facts)) for facts in questions.values()}
    return [
        Message(RecordDict({RECORD: records[id(facts)]}), node, QUERY)
        for node, facts in questions.items()
    ]
