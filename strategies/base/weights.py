"""The weights of replies, as a wrapper replaces them."""

import copy

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from strategies.base.messages import innermost

# A weight of 0 is sent as this: strategies may divide by the sum of some weights, and adding so little changes no number.
TINY = float(np.finfo(np.float64).tiny)


def weight_key(strategy: Strategy) -> str:
    """Return the name of the metric by which a strategy weighs replies."""
    return str(getattr(innermost(strategy), "weighted_by_key", "num-examples"))


def with_weight(reply: Message, key: str, weight: float) -> Message:
    """Return a copy of a reply with another value of the metric ``key``.

    Array data are shared, records are not: some strategies empty them.
    """
    content = RecordDict()
    for name, record in reply.content.items():
        if isinstance(record, MetricRecord) and key in record:
            content[name] = MetricRecord({**record, key: max(float(weight), TINY)})
        else:
            content[name] = ArrayRecord({**record}) if isinstance(record, ArrayRecord) else record
    twin = copy.copy(reply)
    twin.content = content
    return twin
