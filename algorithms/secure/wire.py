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
#: The field of that record.
FACTS = "json"


def packed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the record that holds some facts."""
    return {FACTS: json.dumps(facts, separators=(",", ":")).encode()}


def unpacked(record: Any) -> dict[str, Any]:
    """Return the facts in a record. Raises ``ValueError`` if they cannot be read."""
    facts = json.loads(bytes(record[FACTS]))
    if not isinstance(facts, dict):
        raise ValueError("a message for secure sums cannot be read")
    return facts
