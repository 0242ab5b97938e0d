"""Robust aggregation around a strategy whose replies are models: a few malicious
clients have a bounded influence, whatever they send.

    Robust(FedAdam(), RobustOptions("median"))
    Robust(Scaffold(), RobustOptions("multi-krum", num_malicious=2))

Instead of all replies, the wrapped strategy receives

    median, trimmed-mean, geometric-median
        one reply, with the robust mean of the models: for strategies whose model
        depends only on the average of the replies
    krum, multi-krum
        the chosen replies as they are: for any strategy that takes a part of the
        replies as if the other clients had not answered

All clients have equal weight, since clients report their own numbers of samples and may
lie. Metrics are means over the same clients, with equal weights. Rules, guarantees and
sources: ``algorithms.common.robust``. The rules treat all floating-point arrays
together, including running statistics; for counters (whole numbers) every rule except
Krum's takes the median, and so for arrays with numbers beyond ``LIMIT``, such as masks.

A round with fewer valid replies than the rule needs changes nothing: 2 f + 1 for the
trimmed mean and 2 f + 3 for Krum's rules, f = ``num_malicious``. Clients whose data
differ look like attackers to each other: the median of very different models is not a
good model, and Krum's rules exclude the most different clients in every round.

Differences from Flower's ``FedMedian``, ``FedTrimmedAvg`` and ``MultiKrum``: these
weight the models that Krum has chosen by ``num-examples``, trim a share instead of a
number, compute distances from norms (which loses all digits next to an outlier) and
cannot wrap a method.

Contract: that of the wrapped strategy.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common import robust
from fedapps.algorithms.common.averaging import LIMIT
from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.capabilities import (
    Capabilities,
    DecidingWeights,
    require_declaration,
)
from fedapps.strategies.base.messages import arrays_of, innermost, weight_key, with_weight
from fedapps.strategies.base.updates import flat
from fedapps.strategies.base.wrapper import Wrapper

CHOOSING = ("krum", "multi-krum")
RULES = ("none", "median", "trimmed-mean", "geometric-median", *CHOOSING)


@dataclass(frozen=True)
class RobustOptions(Options):
    """Options of robust aggregation."""

    rule: str = option(
        "none",
        "replaces the mean of the clients' models; all have equal weight",
        choices=RULES,
    )
    num_malicious: int = option(
        1,
        "f, clients of a round that may send anything; trimmed-mean drops the f smallest and "
        "largest values",
        low=0,
    )

    @property
    def least(self) -> int:
        """The number of replies that a round needs."""
        return (
            2 * self.num_malicious + {"trimmed-mean": 1, "krum": 3, "multi-krum": 3}[self.rule]
            if self.counts
            else 1
        )

    @property
    def counts(self) -> bool:
        """Whether the rule needs ``num_malicious``."""
        return self.rule in ("trimmed-mean", *CHOOSING)


class Robust(Wrapper):
    """Wrapper around ``strategy``; raises ``ValueError`` if the rule cannot be applied
    to its replies.
    """

    sets_weights = True

    def __init__(self, strategy: Strategy, options: RobustOptions) -> None:
        if options.rule == "none":
            raise ValueError("Robust needs a rule: RobustOptions(rule='median')")
        wrapped = require_declaration(strategy, "robust.rule")
        name = type(strategy).__name__
        if wrapped.replies != "model":
            raise ValueError(
                f"robust.rule = {options.rule!r}: the replies to {name} are not models, and the "
                "rule compares models: choose 'none'"
            )
        averages = wrapped.aggregation != "single replies"
        if not averages and not (wrapped.subset and options.rule in CHOOSING):
            allowed = "'krum', 'multi-krum' or 'none'" if wrapped.subset else "'none'"
            raise ValueError(
                f"robust.rule = {options.rule!r}: {name} takes more than an average from the "
                f"replies: choose {allowed}"
            )
        self.strategy = strategy
        self.options = options

    @property
    def capabilities(self) -> Capabilities:
        """Replies are those of the wrapped strategy; the model depends on single
        replies.
        """
        wrapped = require_declaration(self.strategy, "robust.rule")
        return Capabilities(wrapped.replies, "single replies", beside=wrapped.beside)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy aggregate the chosen replies, or one reply with
        their robust mean.
        """
        valid = self.answered(replies)
        if len(valid) < self.options.least:
            log(
                WARNING,
                "round %d: the model is unchanged, robust.rule = %r needs %d valid replies and "
                "got %d",
                server_round, self.options.rule, self.options.least, len(valid),
            )  # fmt: skip
            return None, None
        key = weight_key(self.strategy)
        alike = [with_weight(reply, key, 1.0) for reply in valid]
        records = [arrays_of(reply.content)[0] for reply in valid]
        if self.options.rule not in CHOOSING:
            return self.strategy.aggregate_train(
                server_round, [self._one_reply(alike, robust_mean(records, self.options), key)]
            )
        count = 1 if self.options.rule == "krum" else None
        chosen = robust.multi_krum(real(records), self.options.num_malicious, count)
        left = [
            reply.metadata.src_node_id for place, reply in enumerate(valid) if place not in chosen
        ]
        log(INFO, "round %d: %s excludes the nodes %s", server_round, self.options.rule, left)
        return self.strategy.aggregate_train(server_round, [alike[place] for place in chosen])

    def _one_reply(self, replies: list[Message], arrays: ArrayRecord, key: str) -> Message:
        inner: Any = innermost(self.strategy)
        metrics = inner.train_metrics_aggr_fn([reply.content for reply in replies], key)
        metrics[key] = 1.0
        reply = copy.copy(replies[0])
        names = {type(record): name for name, record in replies[0].content.items()}
        reply.content = RecordDict({names[ArrayRecord]: arrays, names[MetricRecord]: metrics})
        return reply

    # --- interface to the round loop and the recorder, delegated ----------------------

    @property
    def last_weights(self) -> dict[int | str, float]:
        """The weights decided by the wrapped strategy; empty if it decides none."""
        return (
            dict(self.strategy.last_weights) if isinstance(self.strategy, DecidingWeights) else {}
        )


def real(records: list[ArrayRecord]) -> NDArray[np.float64]:
    """Return the arrays of models that are compared as points (n, d)."""
    names = compared(records)
    return np.stack([flat({name: read(record[name]) for name in names}) for record in records])


def compared(records: list[ArrayRecord]) -> list[str]:
    """Return the names of the real arrays without numbers beyond ``LIMIT``."""
    return [
        name
        for name, array in records[0].items()
        if read(array).dtype.kind == "f"
        and all((np.abs(read(record[name])) <= LIMIT).all() for record in records)
    ]


def robust_mean(records: list[ArrayRecord], options: RobustOptions) -> ArrayRecord:
    """Return the robust mean of models; the median of arrays that are not compared."""
    points, names = real(records), compared(records)
    if options.rule == "geometric-median":
        mean = robust.geometric_median(points)
    else:
        mean = (
            robust.median(points)
            if options.rule == "median"
            else robust.trimmed_mean(points, options.num_malicious)
        )
    out, start = {}, 0
    for name, array in records[0].items():
        values = read(array)
        if name in names:
            new = mean[start : start + values.size].reshape(values.shape)
            start += values.size
        else:
            stack = np.sort(np.stack([read(record[name]) for record in records]), axis=0)
            lower = stack[(len(stack) - 1) // 2]  # of real numbers: a mean of two may overflow
            new = lower if values.dtype.kind in "fc" else np.rint(np.median(stack, axis=0))
        out[name] = Array(*fields(np.asarray(new, dtype=values.dtype)))
    return ArrayRecord(out)
