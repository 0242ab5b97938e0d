"""Wire format of a message for many clients, and of their answers: both halves of
``node_grid`` and ``node_app``.

A packed content is a RecordDict of records named "0", "1", ..., each of them once
however many clients it is for, and an index that says, as JSON, which client gets which
of them under which name. Nothing in it is executed when it is read; a malformed one is
a ``ValueError``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

INDEX = "index"
#: Types of a message for many clients, and of the question which clients a node has.
MANY, CLIENTS = "query.many", "query.clients"


@dataclass(frozen=True)
class Part:
    """One client's part of a packed message. ``facts``: whatever JSON holds;
    ``content``, ``state``: records, or ``None``.
    """

    facts: dict[str, Any]
    content: RecordDict | None = None
    state: RecordDict | None = None


def pack(parts: Iterable[Part], facts: Mapping[str, Any] | None = None) -> RecordDict:
    """Return the parts, and ``facts`` about all of them, as one content; records that
    several parts hold are in it once.
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

    kept = list(parts)  # alive until the end: records are recognised by their identity
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
    """Return what :func:`pack` was given; every part has records of its own, so that
    one client's changes are not another's.

    Raises ``ValueError`` if the content is malformed.
    """
    try:
        index = json.loads(bytes(packed[INDEX]["json"]))  # type: ignore[arg-type]
        layouts = [[(str(name), str(key)) for name, key in layout] for layout in index["layouts"]]

        def content(row: dict[str, Any], kind: str) -> RecordDict | None:
            if kind not in row:
                return None
            found = RecordDict()
            for name, key in layouts[int(row[kind])]:
                found[name] = packed[key].copy()
            return found

        parts = [
            Part(dict(row["facts"]), content(row, "content"), content(row, "state"))
            for row in index["parts"]
        ]
        return dict(index["facts"]), parts
    except Exception as error:  # whatever a node may have written
        raise ValueError(
            f"a message for many clients cannot be read: {type(error).__name__}: {error}"
        ) from None
