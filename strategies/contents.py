"""Reading the content of Flower messages: bytes, metrics, arrays, and whether a reply has the arrays that were sent."""

from typing import Any

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of all records of a message: array data, metric and configuration values, and their names."""
    return sum(_record_bytes(record) for record in content.values())


def _record_bytes(record: Any) -> int:
    try:
        return int(record.count_bytes())
    except IndexError:  # Flower's count trips over an empty list, which weighs nothing but its name
        empty = [name for name, value in record.items() if isinstance(value, list) and not value]
        rest = type(record)({name: value for name, value in record.items() if name not in empty})
        return int(rest.count_bytes()) + sum(len(name) for name in empty)


def metrics_of(content: RecordDict) -> dict[str, Any]:
    """Return all metric values of a message as one dictionary."""
    out: dict[str, Any] = {}
    for record in content.values():
        if isinstance(record, MetricRecord):
            out.update(record)
    return out


def arrays_of(content: RecordDict) -> list[ArrayRecord]:
    """Return the array records of a message (Flower's own view of them is slow where messages are small)."""
    return [record for record in content.values() if isinstance(record, ArrayRecord)]


def trains(message: Message) -> bool:
    """Return whether this is a training message."""
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


def shape_fault(sent: RecordDict, received: RecordDict) -> str | None:
    """Return how a training reply differs from the model that was sent, in names or shapes, or ``None``."""
    want, got = arrays_of(sent)[0], arrays_of(received)
    if len(got) != 1:
        return f"{len(got)} array records in the reply: exactly one is needed"
    if list(want) != list(got[0]):
        return f"arrays {list(got[0])[:4]} in the reply, but {list(want)[:4]} were sent"
    for name, array in want.items():
        other = got[0][name]
        if tuple(array.shape) != tuple(other.shape):
            return f"array {name!r} has shape {tuple(other.shape)}, but {tuple(array.shape)} was sent"
    if not any(isinstance(record, MetricRecord) and "num-examples" in record for record in received.values()):
        return "the reply has no 'num-examples' metric"
    return None
