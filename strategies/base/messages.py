"""What messages hold (bytes, metrics, arrays, weights), averages of it, and which
strategy wraps which.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from logging import WARNING
from statistics import median_low
from typing import Any, TypeVar

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import log
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import weighted_average
from fedapps.algorithms.contract.wire import fields, read

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


T = TypeVar("T")


def average_arrays(contents: Sequence[RecordDict], weights: Sequence[float]) -> ArrayRecord:
    """Return the weighted average of the one ArrayRecord in each content, names
    kept.
    """
    records = [arrays_of(content)[0] for content in contents]
    names = list(records[0])
    if len(records) == 1 or hold_mean(records):
        return records[0].copy()
    models = [[read(record[name]) for name in names] for record in records]
    return to_record(names, weighted_average(models, weights))


def hold_mean(records: Sequence[ArrayRecord]) -> bool:
    """Return whether several records hold the same arrays: those of nodes that sum, or
    of a secure sum, hold the mean already.
    """
    return len(records) > 1 and all(
        record[name] is array for record in records[1:] for name, array in records[0].items()
    )


def average_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the weighted mean of every metric over the clients that report it; of
    lists those of the most common length count.

    Flower's own function ends the run when one client reports a metric that another
    does not.
    """
    listed: dict[str, list[tuple[float, NDArray[np.float64]]]] = {}
    for values in map(metrics_of, contents):
        weight = float(values.pop(weighted_by_key))
        for name, value in values.items():
            listed.setdefault(name, []).append((weight, np.asarray(value, dtype=np.float64)))
    return MetricRecord({name: _usual_mean(pairs) for name, pairs in listed.items()})


def _usual_mean(pairs: Sequence[tuple[float, NDArray[np.float64]]]) -> Any:
    """Return the weighted mean of the values whose shape is the most common one."""
    usual = most_common([value.shape for _, value in pairs])
    kept = [(weight, value) for weight, value in pairs if value.shape == usual]
    total = sum(weight for weight, _ in kept)
    return np.asarray(sum(weight * value for weight, value in kept) / total).tolist()


def most_common(items: Sequence[T]) -> T:
    """Return the most common item, of several the first."""
    return Counter(items).most_common(1)[0][0]


def to_record(names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
    """Return named arrays as Flower's ArrayRecord."""
    return ArrayRecord(
        {name: Array(*fields(array)) for name, array in zip(names, arrays, strict=True)}
    )


# Replaces a weight of 0, because strategies may divide by a sum of weights; it is too
# small to change a result.
TINY = float(np.finfo(np.float64).tiny)


def weight_key(strategy: Strategy) -> str:
    """Return the name of the metric by which a strategy weights replies."""
    return str(getattr(innermost(strategy), "weighted_by_key", "num-examples"))


#: The share of liars for which :func:`reference` is the median.
HALF = 0.5


def reference(values: Sequence[float], liars: float) -> float:
    """Return the largest of some values without the share ``liars`` of the largest
    ones; with ``HALF`` the median, the lower one of two.
    """
    return sorted(values, reverse=True)[int(liars * len(values))]


def capped(replies: Sequence[tuple[int | str, Message]], key: str, most: float) -> list[int | str]:
    """Lower weights above ``most`` times the median of the replies, the lower one of
    two; return the clients.
    """
    holders = [
        (client, record)
        for client, reply in replies
        for record in reply.content.values()
        if isinstance(record, MetricRecord) and key in record
    ]
    if not holders:
        return []
    limit = most * median_low(float(str(record[key])) for _, record in holders)
    found = []
    for client, record in holders:
        value = float(str(record[key]))
        if value > limit:
            log(
                WARNING,
                "client %s: %s = %.6g is capped to %.6g, %g times the median of the round "
                "(max-weight)",
                client,
                key,
                value,
                limit,
                most,
            )
            record[key] = max(1, int(limit)) if isinstance(record[key], int) else limit
            found.append(client)
    return found


def with_weight(
    reply: Message, key: str, weight: float, model: ArrayRecord | None = None
) -> Message:
    """Return a copy of a reply with the metric ``key`` set to ``weight``, and with
    ``model`` in the place of its arrays, if given.

    Array data are shared with the original, records are not: some strategies empty
    them.
    """
    content = RecordDict()
    for name, record in reply.content.items():
        if isinstance(record, MetricRecord) and key in record:
            content[name] = weighted = record.copy()
            weighted[key] = max(float(weight), TINY)
        else:
            content[name] = (model or record).copy() if isinstance(record, ArrayRecord) else record
    twin = copy.copy(reply)
    twin.content = content
    return twin
