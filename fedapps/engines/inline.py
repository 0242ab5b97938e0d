"""A Grid that runs a ClientApp in this process, without Ray and SuperLink. The overhead
is about 0.1 ms per client.

It is meant for tests, debugging, notebooks, sweeps and experiments with very many cheap
rounds. Strategies and clients are the same as in the other engines. Limitation: a
client that never returns is not stopped.
"""

import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapps.clients.base.together import together
from fedapps.engines.node_app import FIRST_NODE
from fedapps.strategies.base.flower_private import ErrorCode, identify_process, number_message
from fedapps.strategies.base.named_grid import Numbered, PulledGrid


class Contexts(Mapping[int, Context]):
    """The contexts of virtual nodes. They are created when needed, and kept if they
    hold a state.
    """

    def __init__(self, num_clients: int, run_config: Mapping[str, Any], run_id: int) -> None:
        self.nodes = range(FIRST_NODE, FIRST_NODE + num_clients)
        self.run_config, self.run_id = dict(run_config), run_id
        self._kept: dict[int, Context] = {}

    def now(self, node: int) -> Context:
        """Return the context of a node, without keeping a new one."""
        return self._kept.get(node) or self.made(node, RecordDict())

    def made(self, node: int, state: RecordDict) -> Context:
        """Return a context of a node, with this state."""
        if node not in self.nodes:
            raise KeyError(node)
        config: dict[str, Any] = {
            "partition-id": node - FIRST_NODE,
            "num-partitions": len(self.nodes),
        }
        return Context(self.run_id, node, config, state, self.run_config)

    def state(self, node: int) -> RecordDict:
        """Return the state that is kept of a node; an empty one if there is none."""
        kept = self._kept.get(node)
        return kept.state if kept else RecordDict()

    def keep(self, context: Context) -> None:
        """Keep a context, unless it is new and has no state."""
        if context.state or context.node_id in self._kept:
            self._kept[context.node_id] = context

    def __getitem__(self, node: int) -> Context:
        """Return the context of a node, and keep it: the caller may change it."""
        return self._kept.setdefault(node, self.now(node))

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def answer(app: ClientApp, message: Message, context: Context) -> tuple[Message, bool]:
    """Return the reply of an app, or the error that it raised, and whether it raised
    none.
    """
    try:
        return app(message, context), True
    except Exception:  # a client may fail in any way, which must not end the run
        reason = traceback.format_exc(limit=-3)
        return failed(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), False


def failed(message: Message, code: int, reason: str | None) -> Message:
    """Return an error as the reply to a message."""
    return Message(Error(code, reason), reply_to=message)


class InlineGrid(PulledGrid):
    """Grid over ``num_clients`` virtual clients of ``client_app``, with partition ids 0
    to ``num_clients`` - 1.

    ``numbered``: the app knows its clients by these numbers, so that they need not be
    asked for their ids. ``workers``: how many processes run clients.
    """

    workers = 1

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        run_config: Mapping[str, Any] | None = None,
        run_id: int = 1,
        *,
        numbered: bool = False,
    ) -> None:
        identify_process(run_id)
        self.client_app, self.numbered = client_app, numbered
        self._replies: dict[str, Message] = {}
        self._run: Any = None
        self.contexts = Contexts(num_clients, run_config or {}, run_id)

    def known_clients(self) -> Numbered | None:
        """Return all clients, if they are known by their numbers."""
        return Numbered(FIRST_NODE, len(self.contexts)) if self.numbered else None

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Run the ClientApp on each message immediately; return the message ids."""
        asked = list(messages)
        ids = [number_message(message) for message in asked]
        calls = ((m.metadata.dst_node_id, partial(self._answer, m)) for m in asked)
        self._replies.update(zip(ids, together(calls), strict=True))
        return ids

    def _answer(self, message: Message) -> Message:
        kept = self.contexts.now(message.metadata.dst_node_id)
        # The state after a failed message is discarded, as in Flower's simulation: work
        # on a copy and keep it on success.
        state = RecordDict(dict(kept.state))
        private = Context(kept.run_id, kept.node_id, kept.node_config, state, kept.run_config)
        reply, succeeded = answer(self.client_app, message, private)
        if succeeded:
            self.contexts.keep(private)
        return reply

    def pulled(self, numbers: Collection[str]) -> list[Message]:
        """Return the replies."""
        return [self._replies.pop(number) for number in numbers if number in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run the ClientApp on each message and return the replies; ``timeout`` is
        ignored.
        """
        return self.pull_messages(self.push_messages(messages))

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the virtual nodes."""
        return self.contexts.nodes

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run that was set."""
        return self._run
