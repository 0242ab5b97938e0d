"""Many clients behind one node, client half: one message holds the messages of all
clients, one reply holds their replies (server half: ``node_grid``).

Every client runs as on its own node, with its own configuration, context and state. An
exception is the failure of the client that raised it. In a simulation the state comes
with the message and returns with the reply, so that any node can run any client. A
client with a name belongs to its node, and its state stays in that node's context; a
site, of which more is configured than its place, answers for no others. After a
failure, the previous state is kept.
"""

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from logging import ERROR

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log

from fedapps.algorithms.common.prefixes import within
from fedapps.clients.base.adapter import is_site
from fedapps.clients.base.together import together
from fedapps.engines.packing import Part, pack, unpack
from fedapps.strategies.base.flower_private import forwarded

#: Node ids of virtual clients: this number plus the client's.
FIRST_NODE = 1000


def answer_for_many(
    app: ClientApp, clients: Callable[[Context], list[str]] | None = None
) -> ClientApp:
    """Let ``app`` answer messages for many clients, and return it. Each client's part
    is answered like a message to that client.

    ``clients(context)`` returns the names of the clients that belong to a node.
    """

    @app.query("many")
    def many(message: Message, context: Context) -> Message:
        facts, parts = unpack(message.content)
        states: dict[int | str, RecordDict] = {}
        site = is_site(context)
        own = set(clients(context)) if site and clients else None

        def answer(part: Part) -> Part:
            client: int | str = part.facts["client"]
            at_home = isinstance(client, str)
            if not at_home and site:
                why = "a site keeps the state of its clients: no message brings or takes it"
                return Part({"reason": why})
            if at_home and own is not None and client not in own:
                return Part({"reason": f"{str(client)[:100]!r} is no client of this site"})
            if client not in states:
                states[client] = (
                    _of(context, f"{client}/") if at_home else part.state or RecordDict()
                )
            place = _context(context, client, facts["num-clients"], states[client])
            answer = _answer(app, message, place, part)
            states[client] = states[client] if answer.state is None else answer.state
            if at_home and answer.state is not None:
                _keep(context, f"{client}/", answer.state)
            return replace(answer, state=None) if at_home else answer

        answers = together((part.facts["client"], partial(answer, part)) for part in parts)
        return Message(pack(answers), reply_to=message)

    @app.query("clients")
    def names(message: Message, context: Context) -> Message:
        answer = ConfigRecord()
        try:
            answer["clients"] = clients(context) if clients else []
        # any error in a site's data must be reported to the server
        except Exception as error:
            log(ERROR, "This site cannot take part: %s", error)
            answer["fault"] = str(error) or type(error).__name__
        return Message(RecordDict({"config": answer}), reply_to=message)

    return app


def _context(node: Context, client: int | str, num_clients: int, state: RecordDict) -> Context:
    """Return the context of a client, with a copy of its state, so that a failure does
    not change the original.
    """
    if isinstance(client, str):
        return Context(
            node.run_id,
            node.node_id,
            {**node.node_config, "client-id": client},
            state.copy(),
            node.run_config,
        )
    config = {**node.node_config, "partition-id": client, "num-partitions": num_clients}
    return Context(node.run_id, FIRST_NODE + client, config, state.copy(), node.run_config)


def _of(node: Context, prefix: str) -> RecordDict:
    """Return the state of a client that its node keeps."""
    return RecordDict(within(prefix, node.state))


def _keep(node: Context, prefix: str, state: RecordDict) -> None:
    for name in [
        name
        for name in node.state
        if name.startswith(prefix) and name.removeprefix(prefix) not in state
    ]:
        del node.state[name]
    for name, record in state.items():
        node.state[prefix + name] = record


def _answer(app: ClientApp, message: Message, context: Context, part: Part) -> Part:
    """Return the reply of one client with its new state, or its error without one."""
    group, kind = str(part.facts["group"]), str(part.facts["type"])
    try:
        inner = forwarded(message, context.node_id, group, kind, part.content)
        reply = app(inner, context)
    except Exception:  # a client may fail in any way, which must not reach the others
        reason = traceback.format_exc(limit=-3)
        log(ERROR, "Client %s failed: %s", part.facts["client"], reason)
        return Part({"reason": reason})
    if reply.has_error():
        return Part({"reason": reply.error.reason or ""}, None, context.state)
    return Part({}, reply.content, context.state)
