"""Wire format of a message for many clients, and of their replies; used by
``node_grid`` and ``node_app``.

A packed content is a RecordDict of records named "0", "1", ... A record that several
clients get is in it once. A JSON index lists, for each client, its records and their
names. Reading it executes nothing; malformed content raises ``ValueError``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

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
