"""Helpers for message contents (bytes, metrics, arrays) and for wrapped strategies."""

from collections.abc import Iterable, Iterator
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.contract.wire import read

#: Metric of a training reply that fair aggregation needs; the configuration requests it
#: under the same name.
LOSS_BEFORE = "loss-before"


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of all records of a message: array data, metric and
    configuration values, and their names.
    """
    return sum(_record_bytes(record) for record in content.values())


def content_sizes(messages: Iterable[Message]) -> dict[int, int]:
    """Return the bytes of the contents by their ``id``: messages of one phase mostly
    share one.
    """
    contents = {id(message.content): message.content for message in messages}
    return {place: content_bytes(content) for place, content in contents.items()}


def _record_bytes(record: Any) -> int:
    try:
        return int(record.count_bytes())
    # Flower's count fails on empty lists and strings, of which only the names count
    except (IndexError, ValueError):
        return sum(len(name) + _value_bytes(value) for name, value in record.items())


def _value_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_value_bytes(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 1 if isinstance(value, bool) else 8


def metrics_of(content: RecordDict) -> dict[str, Any]:
    """Return all metric values of a message as one dictionary."""
    out: dict[str, Any] = {}
    for record in content.values():
        if isinstance(record, MetricRecord):
            # of the dictionary inside: the record itself is read key by key
            out.update(record.items())
    return out


def arrays_of(content: RecordDict) -> list[ArrayRecord]:
    """Return the array records of a message (Flower's own view of them is slow for
    small messages).
    """
    return [record for record in content.values() if isinstance(record, ArrayRecord)]


def values_in(content: RecordDict) -> list[NDArray[Any]]:
    """Return the values of all arrays of a message."""
    return [read(array) for record in arrays_of(content) for array in record.values()]


def round_of(config: ConfigRecord) -> int:
    """Return the round that a configuration is for."""
    return int(str(config["server-round"]))


def wrapped(strategy: Strategy) -> Strategy | None:
    """Return the strategy inside a wrapper (Flower's for differential privacy, for
    example), which holds it as ``strategy``; ``None`` if this is no wrapper.
    """
    inner = getattr(strategy, "strategy", None)
    return inner if isinstance(inner, Strategy) else None


def chain(strategy: Strategy) -> Iterator[Strategy]:
    """Yield a strategy and what it wraps, from the outside in."""
    inner: Strategy | None = strategy
    while inner is not None:
        yield inner
        inner = wrapped(inner)


def innermost(strategy: Strategy) -> Strategy:
    """Return the strategy inside all wrappers."""
    *_, inner = chain(strategy)
    return inner


def valid_losses(
    replies: Iterable[tuple[int | str, Message]],
) -> list[tuple[int | str, Message, float]]:
    """Return (client, training reply, loss of the model that was sent); replies without
    a finite loss >= 0 are logged and dropped.

    Raises ``ValueError`` naming the first client and its node if no reply reports the
    loss: the clients do not support it.
    """
    out, without = [], []
    for client, reply in replies:
        loss = metrics_of(reply.content).get(LOSS_BEFORE)
        if not isinstance(loss, int | float):
            without.append((client, reply.metadata.src_node_id))
        elif np.isfinite(loss) and loss >= 0:
            out.append((client, reply, float(loss)))
            continue
        log(
            WARNING,
            "client %s left out: %s = %s, must be a number from 0 on",
            client,
            LOSS_BEFORE,
            str(loss)[:60],
        )
    if without and not out:
        raise ValueError(
            f"the reply of client {without[0][0]} (node {without[0][1]}) has no number "
            f"{LOSS_BEFORE!r}, nor has any other: return the "
            "mean training loss of the model as it was received, before training, under that name "
            "among the metrics"
        )
    return out


def trains(message: Message) -> bool:
    """Return whether this is a training message."""
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


def shape_fault(want: ArrayRecord, got: list[ArrayRecord]) -> str | None:
    """Return how the arrays of a training reply differ from the model that was sent, in
    names or shapes, or ``None``.
    """
    if len(got) != 1:
        return f"{len(got)} array records in the reply: exactly one is needed"
    if set(want) != set(got[0]):
        return f"arrays {list(got[0])[:4]} in the reply, but {list(want)[:4]} were sent"
    for name, array in want.items():
        other = got[0][name]
        if tuple(array.shape) != tuple(other.shape):
            return (
                f"array {name!r} has shape {tuple(other.shape)}, but {tuple(array.shape)} was sent"
            )
    return None


def error_line(reply: Message) -> str | None:
    """Return the reason of an error reply as one short line, or ``None`` for a reply
    with content.
    """
    if not reply.has_error():
        return None
    lines = [
        line.strip() for line in (reply.error.reason or "").strip().splitlines() if line.strip()
    ]
    # Flower's node closes the text of an exception so
    last = lines[-1].removesuffix("'>") if lines else f"error code {reply.error.code}"
    return last[:300]
