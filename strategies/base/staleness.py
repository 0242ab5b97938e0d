"""Replies to older models, brought forward to the current one.

A client that was sent model w_v and answers x adds ``(1 + s)^-a (x - w_v)`` to the
current model w, s = updates of the model since: its reply becomes ``w + (1 + s)^-a (x -
w_v)``. Averages of such replies are then FedBuff's step (Nguyen et al., AISTATS 2022,
arXiv 2106.06639, Algorithm 1 and section 5) with the base strategy's weights, and any
strategy whose step depends on an average of models, such as FedAdam, runs as it is. A
reply to the current model is not touched. Running statistics move the same share of the
way from the current ones to the client's; counters are the client's.
"""

import copy

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.averaging import STATISTICS, difference
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.capabilities import declarer, is_private, require_declaration
from fedapps.strategies.base.messages import arrays_of, shape_fault


def check_stale(strategy: Strategy, what: str) -> None:
    """Raise ``ValueError``, with a message that begins with ``what``, if a strategy
    cannot use replies to older models.
    """
    found, name = require_declaration(strategy, what), declarer(strategy)
    if is_private(strategy):
        raise ValueError(
            f"{what}: {name} divides by the number of clients that were asked, which is not the "
            "number of replies: leave out differential privacy"
        )
    if found.replies not in ("model", "update") or found.later not in (None, found.replies):
        raise ValueError(
            f"{what}: the replies to {name} are no models or updates, which could be brought "
            "forward to a newer model: choose a method that averages, such as fedavg or fedadam"
        )
    if found.aggregation == "single replies":
        raise ValueError(
            f"{what}: {name} takes more than an average from the replies (losses, control "
            "variates, duals or distances of this round), and a late one does not belong to this "
            "round: choose a method that averages, such as fedavg or fedadam"
        )


def brought_forward(
    reply: Message, question: Message, current: ArrayRecord, factor: float, updates: bool
) -> Message:
    """Return a reply to ``question`` as one to the model ``current``; ``factor``: how
    much it counts; ``updates``: whether its arrays are the update itself. Raises
    ``ValueError`` if it has other arrays than the model.
    """
    (old,), (new,) = arrays_of(question.content), arrays_of(reply.content)
    if not updates and (fault := shape_fault(current, [new])):
        raise ValueError(f"a late reply that does not fit the current model: {fault}")
    moved = {
        name: _scaled(array, factor)
        if updates
        else _moved(name, array, old[name], current[name], factor)
        for name, array in new.items()
    }
    twin = copy.copy(reply)
    (place,) = (name for name, record in reply.content.items() if record is new)
    twin.content = RecordDict({**reply.content, place: ArrayRecord(moved)})
    return twin


def _scaled(array: Array, factor: float) -> Array:
    values = read(array)
    return Array(*fields((values * factor).astype(values.dtype)))


def _moved(name: str, array: Array, old: Array, current: Array, factor: float) -> Array:
    values, now = read(array), read(current)
    if values.dtype.kind not in "fc":
        return array
    start = now if name.endswith(STATISTICS) else read(old)
    moved = now + factor * difference(values, start)
    return Array(*fields(moved.astype(values.dtype)))
