"""The client half of many clients behind one node: one message holds theirs, one reply their replies (server half: ``node_grid``).

Every client runs as if it had a node of its own: with its own configuration, its own context, its own state. What one of them raises
is that client's failure. The state comes with the message and returns with the reply, so any node can run any client; a client's
state after a failure is the one before, as in Flower's simulation.
"""

import traceback
from logging import ERROR
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.common import log

from fedapps.engines.packing import Part, pack, unpack

if TYPE_CHECKING:
    from fedapps.engines.node_sums import NodeSum

#: Node ids of virtual clients: this number plus the client's.
FIRST_NODE = 1000


def answer_for_many(app: ClientApp) -> ClientApp:
    """Let ``app`` answer messages for many clients, each as it answers that client's own; return it."""

    @app.query("many")
    def many(message: Message, context: Context) -> Message:
        facts, parts = unpack(message.content)
        states: dict[int, RecordDict] = {}
        answers = []
        if "sum" in facts:
            from fedapps.engines.node_sums import NodeSum  # not for clients that have no use for it

            total: NodeSum | None = NodeSum(facts["sum"])
        else:
            total = None
        for part in parts:
            client = int(part.facts["client"])
            state = states.setdefault(client, part.state or RecordDict())
            answer = _answer(app, message, _context(context, client, facts["num-clients"], state), part, total)
            states[client] = answer.state if answer.state is not None else state
            answers.append(answer)
        if total:
            answers.append(Part({}, total.content()))
        return Message(pack(answers), reply_to=message)

    return app


def _context(node: Context, client: int, num_clients: int, state: RecordDict) -> Context:
    """Return the context of a virtual client, with a copy of its state: a failure leaves the original as it was."""
    config = {**node.node_config, "partition-id": client, "num-partitions": num_clients}
    return Context(node.run_id, FIRST_NODE + client, config, state.copy(), node.run_config)


def _answer(app: ClientApp, message: Message, context: Context, part: Part, total: "NodeSum | None") -> Part:
    """Return the reply of one client, with its new state, or its error without a state; its model goes into ``total``, if given."""
    own: Any = Metadata(
        message.metadata.run_id,
        "",
        message.metadata.src_node_id,
        context.node_id,
        "",
        str(part.facts["group"]),
        message.metadata.created_at,
        message.metadata.ttl,
        str(part.facts["type"]),
    )
    try:
        inner: Message = Message(content=part.content, metadata=own)  # type: ignore[call-overload]
        reply = app(inner, context)
    except Exception:  # a client may fail in any way, which must not reach the others
        reason = traceback.format_exc(limit=-3)
        log(ERROR, "client %s failed: %s", part.facts["client"], reason)
        return Part({"reason": reason})
    if reply.has_error():
        return Part({"reason": reply.error.reason or ""}, None, context.state)
    if total and (fault := total.take(inner, reply)):
        return Part({"reason": fault}, None, context.state)
    return Part({}, reply.content, context.state)
