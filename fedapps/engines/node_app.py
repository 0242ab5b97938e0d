"""Many clients behind one node, client half: one message holds the messages of all
clients, one reply holds their replies (server half: ``node_grid``).

Every client runs as on its own node, with its own configuration, context and state. An
exception is the failure of the client that raised it. In a simulation the state comes
with the message and returns with the reply, so that any node can run any client. A
client with a name belongs to its node, and its state stays in that node's context; a
site, of which more is configured than its place, answers for no others. After a
failure, the previous state is kept.

A packed content is a RecordDict of records named "0", "1", ... A record that several
clients get is in it once. A JSON index lists, for each client, its records and their
names. Reading it executes nothing; malformed content raises ``ValueError``.
"""

import json
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from logging import ERROR
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log

from fedapps.algorithms.common.prefixes import within
from fedapps.clients.base.adapter import is_site
from fedapps.clients.base.together import together
from fedapps.strategies.base.flower_private import forwarded

#: Node ids of virtual clients: this number plus the client's.
FIRST_NODE = 1000
INDEX = "index"
#: Types of a message for many clients, and of a request for a node's list of clients.
MANY, CLIENTS = "query.many", "query.clients"


@dataclass(frozen=True)
class Part:
    """One client's part of a packed message. ``facts``: values that JSON can hold.
    ``content``, ``state``: records, or ``None``.
    """

    facts: dict[str, Any]
    content: RecordDict | None = None
    state: RecordDict | None = None


# --- the wire format ------------------------------------------------------------------


def pack(parts: Iterable[Part], facts: Mapping[str, Any] | None = None) -> RecordDict:
    """Return the parts, and ``facts`` about all of them, as one content. Records that
    several parts share are in it once.
    """
    table: dict[int, str] = {}
    contents: dict[int, int] = {}
    layouts: list[list[tuple[str, str]]] = []
    packed, rows = RecordDict(), []

    def place(content: RecordDict) -> int:
        if id(content) not in contents:
            layout = []
            for name, record in content.items():
                if id(record) not in table:
                    table[id(record)] = key = str(len(table))
                    packed[key] = record
                layout.append((name, table[id(record)]))
            contents[id(content)] = len(layouts)
            layouts.append(layout)
        return contents[id(content)]

    kept = list(parts)  # keeps the records alive: they are compared by id
    for part in kept:
        row: dict[str, Any] = {"facts": part.facts}
        if part.content is not None:
            row["content"] = place(part.content)
        if part.state:
            row["state"] = place(part.state)
        rows.append(row)
    index = json.dumps(
        {"facts": facts or {}, "layouts": layouts, "parts": rows}, separators=(",", ":")
    )
    packed[INDEX] = ConfigRecord({"json": index.encode()})
    return packed


def unpack(packed: RecordDict) -> tuple[dict[str, Any], list[Part]]:
    """Return the arguments of :func:`pack`. Each part gets its own copies of records,
    so that a client's changes do not affect others.

    Raises ``ValueError`` if the content is malformed.
    """
    try:
        index = json.loads(bytes(packed[INDEX]["json"]))  # type: ignore[arg-type]
        layouts = [[(str(name), str(key)) for name, key in layout] for layout in index["layouts"]]

        def content(row: dict[str, Any], kind: str) -> RecordDict | None:
            if kind not in row:
                return None
            records = RecordDict()
            for name, key in layouts[int(row[kind])]:
                records[name] = packed[key].copy()
            return records

        parts = [
            Part(dict(row["facts"]), content(row, "content"), content(row, "state"))
            for row in index["parts"]
        ]
        return dict(index["facts"]), parts
    except Exception as error:  # a node may have sent anything
        raise ValueError(
            f"a message for many clients cannot be read: {type(error).__name__}: {error}"
        ) from None


# --- the answers ----------------------------------------------------------------------


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
                kept = within(f"{client}/", context.state) if at_home else part.state
                states[client] = RecordDict(dict(kept or {}))
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
        reply = app(forwarded(message, context.node_id, group, kind, part.content), context)
    except Exception:  # a client may fail in any way, which must not reach the others
        reason = traceback.format_exc(limit=-3)
        log(ERROR, "Client %s failed: %s", part.facts["client"], reason)
        return Part({"reason": reason})
    if reply.has_error():
        return Part({"reason": reply.error.reason or ""}, None, context.state)
    return Part({}, reply.content, context.state)
