"""Names and coding of what secure sums add to messages, for both halves. Needs no
cryptography, so that every client can import it.
"""

import json
from collections.abc import Mapping
from typing import Any

#: The type of the messages of secure sums, the record that they add, and the masked
#: vector in a reply.
QUERY, RECORD, MASKED = "query.secure", "secure", "masked"
#: The record of metrics in the clear, and which these may be, in a reply that is masked
#: once weights are decided.
CLEAR = "clear"
CLEARED = {"loss-before", "num-examples"}
#: The fields of that record: JSON, and the bytes that it has places for, in order.
FACTS, BYTES = FRAME = "json", "bytes"


class Refusal(ValueError):
    """What a client is asked to do would reveal more than a sum. The message holds
    nothing of its data.
    """


def packed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the record that holds some facts: what JSON can hold, and
    bytes.
    """
    parts: list[bytes] = []

    def place(data: Any) -> dict[str, int]:
        parts.append(bytes(data))
        return {BYTES: len(data)}

    text = json.dumps(facts, separators=(",", ":"), default=place)
    return {FACTS: text.encode(), BYTES: b"".join(parts)}


def unpacked(record: Any) -> dict[str, Any]:
    """Return the facts in a record. Raises ``ValueError`` if they cannot be read."""
    data, begin = bytes(record[BYTES]), 0

    def filled(row: dict[str, Any]) -> Any:
        nonlocal begin
        if row.keys() != {BYTES}:
            return row
        part = data[begin : begin + max(0, int(row[BYTES]))]
        begin += len(part)
        return part

    facts = json.loads(bytes(record[FACTS]), object_hook=filled)
    if not isinstance(facts, dict) or begin != len(data):
        raise ValueError("a message for secure sums cannot be read")
    return facts
