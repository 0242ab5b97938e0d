"""Reading and replacing the aggregation weights of replies."""

import copy

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from strategies.base.messages import innermost

# Used for a weight of 0: strategies may divide by a sum of weights, and such a small term changes no result.
TINY = float(np.finfo(np.float64).tiny)


def weight_key(strategy: Strategy) -> str:
    """Return the name of the metric by which a strategy weights replies."""
    return str(getattr(innermost(strategy), "weighted_by_key", "num-examples"))


def with_weight(reply: Message, key: str, weight: float) -> Message:
    """Return a copy of a reply with the metric ``key`` set to ``weight``.

    Array data are shared with the original, records are not: some strategies empty them.
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
