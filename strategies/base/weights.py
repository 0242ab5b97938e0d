"""Reading and replacing the aggregation weights of replies."""

import copy
from collections.abc import Sequence
from logging import WARNING
from statistics import median_low

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from fedapps.strategies.base.messages import innermost

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
