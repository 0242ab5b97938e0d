"""Does a strategy average its replies by their weights? What a wrapper that replaces the weights must know.

Known classes answer at once, a stranger's override that hands the replies on to a known class (``super().aggregate_train(...)``) with
them. One that does not is tried: where copies of it return the same model for weights under which the average differs, it does not.
"""

import copy
from collections.abc import Sequence
from logging import DEBUG

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from strategies.base.messages import innermost
from strategies.fedavg import FedAvg, average_arrays

#: Classes of Flower whose model is a function of the weighted average of the replies, and those whose model is not.
AVERAGING = (flower.FedAvg, flower.FedAvgM, flower.FedAdam, flower.FedYogi, flower.FedAdagrad, flower.FedProx)
OTHERS = (
    flower.FedMedian, flower.FedTrimmedAvg, flower.Krum, flower.MultiKrum, flower.Bulyan, flower.QFedAvg, flower.FedXgbBagging,
    flower.FedXgbCyclic,
)  # fmt: skip
# A weight of 0 is sent as this: strategies may divide by the sum of some weights, and adding so little changes no number.
TINY = float(np.finfo(np.float64).tiny)


def averages_by_weight(strategy: Strategy) -> bool | None:
    """Return whether ``strategy`` averages by weight; ``None`` where its class does not tell."""
    claim = getattr(strategy, "averages_by_weight", None)
    if claim is False:
        return False
    strategy = innermost(strategy)
    for kind in type(strategy).__mro__:
        if "aggregate_train" not in vars(kind):
            continue
        if kind in OTHERS:
            return False
        if kind in AVERAGING or (issubclass(kind, FedAvg) and kind.__module__.startswith("strategies.")):
            return bool(getattr(strategy, "averages_by_weight", True))
        code = getattr(vars(kind)["aggregate_train"], "__code__", None)
        if code is None or "aggregate_train" not in code.co_names:
            return None
    return None


def ignores_weights(strategy: Strategy, server_round: int, replies: Sequence[Message], weights: Sequence[float]) -> bool | None:
    """Return whether copies of ``strategy`` make the same model of ``replies`` with these weights and with equal ones.

    ``None`` where that says nothing: the averages are the same, or a copy cannot be made or fails.
    """
    trials = [list(weights), [1.0 / len(replies)] * len(replies)]
    try:
        averages = [average_arrays([reply.content for reply in replies], trial) for trial in trials]
        if _equal(*averages):
            return None
        models = []
        for trial in trials:
            weighted = [with_weight(reply, weight_key(strategy), w) for reply, w in zip(replies, trial, strict=True)]
            models.append(copy.deepcopy(strategy).aggregate_train(server_round, weighted)[0])
    except Exception as error:  # whatever a stranger's strategy may raise, the run itself will raise it again
        log(DEBUG, "%s was not tried: %s", type(strategy).__name__, error)
        return None
    return None if models[0] is None or models[1] is None else _equal(models[0], models[1])


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


def _equal(a: ArrayRecord, b: ArrayRecord) -> bool:
    return all(np.array_equal(a[name].numpy(), b[name].numpy()) for name in a)
