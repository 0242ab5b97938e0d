"""Validation of client replies: a broken or malicious reply is dropped and must not
affect the other clients.

A reply is invalid if it cannot be read, holds a number that is not finite or is
absurdly large, lacks its weight, or, for methods whose replies are models, differs in
names, shapes or kinds from the model that was sent, or holds a negative variance. A
valid reply may still be poisoned. A bound on the norm of the update and a cap on the
weight together limit how much one client changes the model in a round. Neither is
enough alone: a short update with a giant weight outweighs all others. The bounds that
compare the replies of a round are in ``relative_bounds`` and ``weights``.
"""

import math
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import LIMIT, VARIANCES, difference, same
from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.agreement import Agreement, without
from fedapps.strategies.base.capabilities import (
    Capabilities,
    counts_by_samples,
    declared,
    is_private,
    needs_alike,
    replies_of,
)
from fedapps.strategies.base.messages import (
    LOSS_BEFORE,
    arrays_of,
    innermost,
    metrics_of,
    shape_fault,
    trains,
)

#: Limits: metrics per reply, characters per name, numbers per list.
MOST_METRICS, LONGEST_METRIC_NAME, LONGEST_METRIC = 100, 100, 10_000
#: Characters of a fault in the log.
LONGEST_FAULT = 500


@dataclass(frozen=True)
class UpdateBound(Options):
    """The bound on a client's update."""

    max_update_norm: float = option(
        0.0, "Euclidean norm of a client's update, over all its real arrays; 0: any", low=0
    )
    on_large_update: str = option(
        "reject",
        "what happens to a larger update: it is left out, or shortened to the bound",
        choices=["reject", "clip"],
    )
    max_weight: float = option(
        0.0, "most weight of a client, times the median of the round; 0: any", low=0
    )
    max_array_value: float = option(
        1e6,
        "largest number in arrays that are not the model: control variates, gradients, weak "
        "learners",
        low=0,
        open_low=True,
    )
    max_relative_update: float = option(
        0.0,
        "norm of a client's update, times the median of the round, to which longer ones are "
        "shortened; 0: any",
        low=0,
    )
    max_metric_bytes: int = option(
        200_000, "most bytes of the metrics of a reply, which the record repeats", low=1000
    )


@dataclass
class Rules:
    """Requirements on the replies to a strategy's messages.

    ``like_model``: a training reply has the arrays that were sent, and its update is
    the difference. ``updates``: the arrays are the update itself. ``sums``: the reply
    is one array of whole numbers, as many as were asked for. Without one of the first
    two, ``bound`` does not apply. ``weight``: a metric that every reply must hold as a
    number above 0 (``None``: none). ``alike``: the replies of a phase must hold the
    same metrics. ``by_weight``: models count by ``weight``. ``beside``, ``one_way``,
    ``any_scale``: as in ``Capabilities``. ``relative``:
    the replies of a round are compared with each other (``relative_bounds``). Not under
    differential privacy: one client's data would change what others contribute, and the
    noise is not made for that.
    """

    like_model: bool = True
    updates: bool = False
    sums: bool = False
    weight: str | None = None
    bound: UpdateBound = UpdateBound()
    alike: bool = False
    by_weight: bool = False
    beside: str = ""
    one_way: str = ""
    any_scale: bool = False
    relative: bool = False
    agreement: Agreement = field(default_factory=Agreement)
    undefined: set[str] = field(default_factory=set)

    def follow(self, strategy: Strategy) -> None:
        """Set the requirements to what ``strategy``, or the strategy inside its
        wrappers, currently needs.
        """
        replies = replies_of(strategy)
        self.like_model, self.updates = replies == "model", replies == "update"
        self.sums = replies == "sums"
        self.weight = getattr(innermost(strategy), "weighted_by_key", None)
        self.alike, self.by_weight = needs_alike(strategy), counts_by_samples(strategy)
        self.relative = not is_private(strategy)
        found = declared(strategy) or Capabilities()
        self.beside, self.any_scale = found.beside, found.any_scale
        self.one_way = found.one_way

    def fault(self, message: Message, reply: Message) -> str | None:
        """Return why a reply is invalid, or ``None``. Clips its update and casts its
        arrays to the types that were sent.
        """
        try:
            return self._fault(message.content, reply.content, trains(message))
        except Exception as error:  # malformed bytes can raise anything
            return (
                "the reply cannot be read: "
                f"{' '.join(str(error).split())[:300] or type(error).__name__}"
            )

    def checked(self, message: Message, reply: Message, name: str) -> str | None:
        """Return why a reply is invalid; an undefined score of the client called
        ``name`` only costs itself.
        """
        reason = self.fault(message, reply)
        # a strategy that needs them alike would lose all clients' score
        kept = reason is None or (self.alike and not trains(message))
        if kept or not (names := self.take_undefined(message, reply)):
            return reason
        self.undefined.update(names)
        log(
            WARNING,
            "%s: metric %s is not a number, and left out of the mean",
            name,
            ", ".join(map(repr, names))[:LONGEST_FAULT],
        )
        return self.fault(message, reply)

    def take_undefined(self, message: Message, reply: Message) -> list[str]:
        """Remove the metrics that are NaN from a reply that holds more than them, and
        return their names: a score that a client's samples leave undefined (of one
        class, say) costs no model, and no other score.

        What a strategy needs stays: the weight, the loss before training; and the loss
        of an evaluation, which says that the model diverged.
        """
        needed, metrics = {"num-examples", self.weight, LOSS_BEFORE}, metrics_of(reply.content)
        kept = needed if trains(message) else needed | {"loss"}
        found = [
            name
            for name, value in metrics.items()
            if name not in kept and np.isnan(np.asarray(value, np.float64)).any()
        ]
        model = self.like_model or self.updates
        if not (model if trains(message) else metrics.keys() - needed - {*found}):
            return []
        without(reply, found)
        return found

    def _fault(self, sent: RecordDict, got: RecordDict, training: bool) -> str | None:
        if fault := _metric_fault(metrics_of(got), self.weight, self.bound.max_metric_bytes):
            return fault
        like, received = self.like_model and training, arrays_of(got)
        model = next(iter(arrays_of(sent)), ArrayRecord())
        if self.one_way:
            kept = {n: array for n, array in model.items() if not n.startswith(self.one_way)}
            model = ArrayRecord(kept)
        if self.sums and training:
            return _sums_fault(sent, received)
        if like:
            if fault := shape_fault(model, received):
                return fault
            in_order(received[0], list(model))
        records = [
            (record, {name: read(array) for name, array in record.items()}) for record in received
        ]
        for _, arrays in records:
            for name, values in arrays.items():
                of_model = like and not (self.beside and name.startswith(self.beside))
                most = LIMIT if of_model or self.any_scale else self.bound.max_array_value
                if fault := _array_fault(name, values, most, model):
                    return fault
                if of_model and name.endswith(VARIANCES) and values.size and values.min() < 0:
                    return f"array {name!r} holds {values.min():.3g}: a variance is at least 0"
        if like:
            return self._model_fault(model, *records[0])
        if self.updates and training:
            for record, arrays in records:
                if fault := self._bound(record, arrays, {}):
                    return fault
        return None

    def _model_fault(
        self, sent: ArrayRecord, record: ArrayRecord, arrays: dict[str, NDArray[Any]]
    ) -> str | None:
        for name, array in sent.items():
            kind, values = np.dtype(array.dtype), arrays[name]
            if values.dtype.kind != kind.kind:
                return f"array {name!r} is of type {values.dtype}, but {kind} was sent"
            # float64 where float32 was sent is harmless, but the model keeps its type
            if values.dtype != kind:
                arrays[name] = values.astype(kind)
                if fault := _array_fault(name, arrays[name], LIMIT, sent):
                    return fault
                record[name] = Array(*fields(arrays[name]))
        return self._bound(
            record,
            arrays,
            {name: read(array) for name, array in sent.items()}
            if self.bound.max_update_norm
            else {},
        )

    def _bound(
        self, record: ArrayRecord, arrays: dict[str, NDArray[Any]], start: dict[str, NDArray[Any]]
    ) -> str | None:
        """Apply the bound to ``arrays``, or to their difference from ``start``."""
        bound = self.bound.max_update_norm
        if not bound:
            return None
        update = update_of(arrays, start)
        norm = math.sqrt(sum(float(np.vdot(part, part).real) for part in update.values()))
        if norm <= bound:
            return None
        if self.bound.on_large_update == "reject":
            return f"the update has the norm {norm:.6g}, above max-update-norm = {bound:g}"
        for name, part in update.items():
            part *= bound / norm
            record[name] = Array(*fields((part + start.get(name, 0.0)).astype(arrays[name].dtype)))
        return None


def _sums_fault(sent: RecordDict, received: list[ArrayRecord]) -> str | None:
    wanted = next(
        int(str(config["sums"]))
        for config in sent.values()
        if isinstance(config, ConfigRecord) and "sums" in config
    )
    arrays = [read(array) for record in received for array in record.values()]
    if len(received) != 1 or len(arrays) != 1:
        return (
            f"{len(arrays)} arrays in {len(received)} records of the reply: exactly one is "
            "needed, of sums"
        )
    (values,) = arrays
    if values.dtype.kind != "i" or values.shape != (wanted,):
        return (
            f"sums of type {values.dtype} and shape {values.shape}: must be {wanted} whole numbers"
        )
    return _array_fault("sums", values)


def in_order(record: ArrayRecord, names: list[str]) -> None:
    """Bring the arrays of a record into the order of ``names``: methods go through
    replies by position.
    """
    if list(record) != names:
        for name in names:
            record[name] = record.pop(name)


def update_of(
    arrays: dict[str, NDArray[Any]], start: dict[str, NDArray[Any]]
) -> dict[str, NDArray[np.float64]]:
    """Return the float64 difference of floating-point arrays from those of ``start`` (0
    if missing there); counters are left out.
    """
    return {
        name: difference(values, start.get(name, 0.0))
        for name, values in arrays.items()
        if values.dtype.kind in "fc"
    }


def _metric_fault(metrics: dict[str, Any], weight: str | None, most: int) -> str | None:
    if len(metrics) > MOST_METRICS:
        return f"{len(metrics)} metrics in the reply: at most {MOST_METRICS}"
    for name, value in metrics.items():
        if len(name) > LONGEST_METRIC_NAME or not name.isprintable() or not name.strip():
            return (
                f"a metric is called {name[:30]!r}...: a name has up to {LONGEST_METRIC_NAME} "
                "printable characters"
            )
        if not (type(value) in (int, float) and -LIMIT <= value <= LIMIT) and (
            fault := _value_fault(name, value)
        ):
            return fault
        if name in ("num-examples", weight) and (isinstance(value, list) or value <= 0):
            return f"{name} = {str(value)[:60]}: must be a number above 0"
    size = sum(
        len(name) + 8 * (len(value) if isinstance(value, list) else 1)
        for name, value in metrics.items()
    )
    if size > most:
        return f"the metrics of the reply have {size} bytes: at most max-metric-bytes = {most}"
    if weight is not None and weight not in metrics:
        return f"the reply has no {weight!r} metric"
    return None


def _value_fault(name: str, value: Any) -> str | None:
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.size > LONGEST_METRIC:
        return f"metric {name!r} holds {numbers.size} numbers: at most {LONGEST_METRIC}"
    if not np.isfinite(numbers).all():
        return f"metric {name!r} is not finite"
    if numbers.size and np.abs(numbers).max() > LIMIT:
        return (
            f"metric {name!r} is {np.abs(numbers).max():.3g} (limit {LIMIT:g}): the client has "
            "probably diverged, lower its learning rate"
        )
    return None


def _array_fault(
    name: str, values: NDArray[Any], most: float = LIMIT, sent: ArrayRecord | None = None
) -> str | None:
    """Return what is wrong with the values that are not those of ``sent``, by name or
    number: a mask's may be infinite.
    """
    if values.dtype.kind in "bu" or not values.size:
        return None
    most = LIMIT if values.dtype.kind == "i" else most  # places and counts
    size = np.abs(values) if values.dtype.kind == "c" else values
    low, high = float(size.min()), float(size.max())  # NaN if any value is
    if -most <= low and high <= most:
        return None
    numbered = list(sent or ())[int(name) :][:1] if name.isdecimal() else [name]
    before = [read(sent[key]) for key in numbered if sent and key in sent]
    if before and before[0].shape == values.shape:
        return _array_fault(name, values[~same(values, before[0])], most)
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"array {name!r} holds values that are not finite"
    return (
        f"array {name!r} holds {max(-low, high):.3g} (limit {most:g}): the client has probably "
        "diverged, lower its learning rate"
    )
