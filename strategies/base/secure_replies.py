"""Masked replies as vectors, and their sum as replies."""

from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedapps.algorithms.contract.sent import METHOD
from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.secure.fixed_point import BYTES, Words, from_bytes
from fedapps.algorithms.secure.vector import Layout, Terms, from_sum
from fedapps.algorithms.secure.wire import MASKED
from fedapps.strategies.base.messages import arrays_of


def vector_of(terms: Terms, content: RecordDict, reply: RecordDict, layout: str) -> Words:
    """Return the masked vector in a reply to ``content``. Raises ``ValueError`` if it
    does not have its layout, or that is not the one of such replies.
    """
    found = Layout.from_text(layout)
    if terms.replies == "model":
        (record,) = arrays_of(content)
        want = [(name, tuple(array.shape)) for name, array in record.items()]
        if want != [(name, shape) for name, shape, _ in found.arrays]:
            raise ValueError("its arrays are not those that were sent")
    vector = read(arrays_of(reply)[0][MASKED])
    if vector.size != BYTES * found.size():
        raise ValueError(f"its vector has {vector.size} bytes")
    return from_bytes(vector)


def mean_replies(
    terms: Terms,
    layout: Layout,
    content: RecordDict,
    total: Words,
    survivors: Sequence[str],
    methods: set[str],
) -> dict[str, RecordDict]:
    """Return a reply of every survivor: the mean, or the total and zeros."""
    (record,) = arrays_of(content)
    key = next(name for name, one in content.items() if one is record)
    sent = {name: read(array) for name, array in record.items()}
    arrays, metrics, count = from_sum(terms, layout, sent, total)
    share = count / len(survivors)
    metrics[terms.weight] = int(share) if share.is_integer() else share
    shared = {name: Array(*fields(value)) for name, value in arrays.items()}
    zeros = {name: Array(*fields(np.zeros_like(value))) for name, value in arrays.items()}
    out = {}
    for place, name in enumerate(survivors):
        reply = RecordDict(
            {
                key: ArrayRecord(zeros if terms.replies == "sums" and place else shared),
                "metrics": MetricRecord(dict(metrics)),
            }
        )
        if methods:
            reply["info"] = ConfigRecord({METHOD: " ".join(sorted(methods))})
        out[name] = reply
    return out
