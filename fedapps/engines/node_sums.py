"""A node that sums before it answers: it sends one sum of its clients' models, and the
metrics of each client.

This is for strategies that need only the weighted average of the models
(``strategies.base.capabilities``). The sums are in fixed point
(``algorithms.common.exact_sum``), so that their bits do not depend on which client ran
where. The node checks each model with the same rules as the server, and leaves out the
model of a client with a fault. On the server every reply then holds the mean of all
models, so a strategy that averages the replies gets that mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.exact_sum import ExactSum
from fedapps.algorithms.common.wire import fields, read
from fedapps.strategies.base.capabilities import declared, declarer
from fedapps.strategies.base.messages import arrays_of, metrics_of
from fedapps.strategies.base.reply_validation import Rules, UpdateBound, length_of_sums
from fedapps.strategies.base.weights import weight_key

#: Name of the array of a sum: the parts of all arrays of a model, one after the other,
#: followed by the parts of the weights.
PARTS = "parts"


@dataclass
class Plan:
    """What a node sums. ``weight``: the metric that weights a model ("": all weights
    are 1). ``rules``: checks for each reply.
    """

    weight: str
    rules: Rules

    def facts(self) -> dict[str, Any]:
        """Return the plan as values that can be sent to a node."""
        rules = self.rules
        checks = {
            "weight": rules.weight,
            "beside": rules.beside,
            "any_scale": rules.any_scale,
            "bound": asdict(rules.bound),
        }
        checks |= {"like_model": rules.like_model, "sums": rules.sums}
        return {"weight": self.weight, "rules": checks}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Plan":
        """Return the plan with these :meth:`facts`."""
        checks = facts["rules"]
        names = ("like_model", "sums", "weight", "beside", "any_scale")
        rules = Rules(**{name: checks[name] for name in names})
        rules.bound = UpdateBound(**checks["bound"])
        return cls(facts["weight"], rules)


def plan_of(strategy: Strategy, rules: Rules) -> Plan:
    """Return what the nodes sum for a strategy. Raises ``ValueError`` if it needs more
    than a sum.
    """
    capabilities = declared(strategy)
    if (
        capabilities is None
        or capabilities.replies not in ("model", "sums")
        or capabilities.aggregation == "single replies"
    ):
        raise ValueError(
            f"node-sums = true: {declarer(strategy)} does not declare that it only needs the "
            "average or the sum of the clients' models: choose false"
        )
    if rules.bound.max_weight:
        raise ValueError(
            "node-sums = true: max-weight compares the weights of all clients of a round: choose "
            "max-weight = 0, or node-sums = false"
        )
    weighted = capabilities.aggregation == "weighted average"
    return Plan(weight_key(strategy) if weighted else "", rules)


class WholeSum(ExactSum):
    """A sum of vectors (n,) of whole numbers: ``parts`` (n,). Unlike ``ExactSum`` it
    has no lower parts and no bound.
    """

    def __init__(self, size: int) -> None:
        self.parts = np.zeros(size, np.int64)

    def add(self, values: NDArray[Any]) -> None:
        """Add a vector (n,)."""
        self.parts += values.astype(np.int64)


class NodeSum:
    """The sum of the replies of a node's clients, models or sums. It is the client half
    of :class:`GridSum`.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.plan = Plan.of_facts(facts)
        self.sum: ExactSum | None = None

    def take(self, message: Message, reply: Message) -> str | None:
        """Move the model of a client's reply into the sum. Return the reason if that is
        not possible, else ``None``.
        """
        if fault := self.plan.rules.fault(message, reply):
            return fault
        (record,) = arrays_of(reply.content)
        if self.plan.rules.sums:
            (own,) = (read(array) for array in record.values())
            self.sum = self.sum or WholeSum(len(own))
            self.sum.add(own)
        else:
            weight = float(metrics_of(reply.content)[self.plan.weight]) if self.plan.weight else 1.0
            flat = np.concatenate(
                [np.ravel(read(array)).astype(np.float64) for array in record.values()]
                + [np.ones(1)]
            )
            self.sum = self.sum or ExactSum(len(flat))
            try:
                self.sum.add(weight * flat)
            except OverflowError as error:
                return str(error)
        for name in [name for name, part in reply.content.items() if part is record]:
            del reply.content[name]
        return None

    def content(self) -> RecordDict | None:
        """Return the sum as a message's content."""
        return (
            RecordDict({PARTS: ArrayRecord({PARTS: Array(*fields(self.sum.parts))})})
            if self.sum
            else None
        )


class GridSum:
    """The mean of all clients' models, from the sums of the nodes. ``sent``: the model
    that was sent; ``name``: the name of its record.

    If ``sums``, the replies are sums of whole numbers. Then the first reply gets the
    total, the others get zeros.
    """

    def __init__(self, sent: RecordDict, sums: bool = False) -> None:
        self.name, self.sent = next(
            (name, record) for name, record in sent.items() if isinstance(record, ArrayRecord)
        )
        self.sizes = [int(np.prod(array.shape)) for array in self.sent.values()]
        self.sum = WholeSum(length_of_sums(sent)) if sums else ExactSum(sum(self.sizes) + 1)

    def merge(self, content: RecordDict) -> None:
        """Add a node's sum. Raises ``ValueError`` if it does not fit the model."""
        (record,) = arrays_of(content)
        self.sum.merge(read(record[PARTS]))

    def give(self, replies: Sequence[Message]) -> None:
        """Put the mean into the clients' replies. Each gets its own record with the
        same arrays.
        """
        if isinstance(self.sum, WholeSum):
            for place, reply in enumerate(replies):
                own = self.sum.parts if place == 0 else np.zeros_like(self.sum.parts)
                reply.content[self.name] = ArrayRecord({PARTS: Array(*fields(own))})
            return
        *total, weight = self.sum.value()
        means = np.split(np.array(total) / weight, np.cumsum(self.sizes)[:-1])
        arrays = {}
        for (name, array), mean in zip(self.sent.items(), means, strict=True):
            kind = np.dtype(array.dtype)
            value = (mean if kind.kind == "f" else np.rint(mean)).astype(kind).reshape(array.shape)
            arrays[name] = Array(*fields(value))
        record = ArrayRecord(arrays)
        for reply in replies:
            reply.content[self.name] = record.copy()
