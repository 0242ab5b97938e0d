"""FedBuff: asynchronous rounds around a strategy that averages. Some clients train at
any time; whenever ``buffer`` of them have replied, the model changes, and as many start
from it. FedAsync is ``buffer = 1``.

    FedBuff(FedAdam(), FedBuffOptions(buffer=3)).start(grid, ...)

Sources: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with
Buffered Asynchronous Aggregation", AISTATS 2022, arXiv 2106.06639, Algorithm 1; Xie,
Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv 1903.03934.

A reply that is s updates old counts (1 + s)^-``staleness``; the weighted average of the
updates, with the wrapped strategy's weights, is its step (``strategies.base.staleness``
brings late replies forward, ``strategies.base.timing`` decides when a round ends and
says where it differs from the paper). If all clients are equally fast and ``buffer`` is
the number that train at a time, this is the wrapped strategy, bit for bit.

Contract: that of the wrapped strategy. How many clients train at a time is the client
grid's ``clients_per_round`` (0: all).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from algorithms.common.options import Options, option
from strategies.base.capabilities import (
    Capabilities,
    require_declaration,
)
from strategies.base.messages import innermost
from strategies.base.staleness import check_stale
from strategies.base.timing import STALENESS
from strategies.base.wrapper import Wrapper


@dataclass(frozen=True)
class FedBuffOptions(Options):
    """Options of FedBuff."""

    buffer: int = option(
        0,
        "replies with which the model changes; 1: FedAsync; 0: half as many as clients train at a "
        "time (clients-per-round)",
        low=0,
    )
    staleness: float = option(
        STALENESS, "a; a reply that is s updates old counts (1 + s)^-a", low=0
    )


class FedBuff(Wrapper):
    """Wrapper around ``strategy``. Raises ``ValueError`` if it takes more than an
    average of models or updates from the replies.
    """

    def __init__(self, strategy: Strategy, options: FedBuffOptions | None = None) -> None:
        check_stale(strategy, "FedBuff")
        self.strategy, self.options = strategy, options or FedBuffOptions()

    @property
    def capabilities(self) -> Capabilities:
        """Replies are those of the wrapped strategy; some of them may be left out, but
        no sum of all that were asked is taken.
        """
        wrapped = require_declaration(self.strategy, "FedBuff")
        return Capabilities(wrapped.replies, "single replies", subset=True)

    @property
    def exponent(self) -> float:
        """a: a reply that is s updates old counts (1 + s)^-a."""
        return self.options.staleness

    def buffer_size(self, training: int) -> int:
        """Return how many replies a round takes, if ``training`` clients train at a
        time. Raises ``ValueError`` if it is more than these, or too few for one of
        Flower's strategies, which waits for its minimum.
        """
        if self.options.buffer > training:
            raise ValueError(
                f"fedbuff.buffer = {self.options.buffer}, but {training} clients train at a time: "
                f"choose at most that many, or more clients-per-round"
            )
        buffer = self.options.buffer or (training + 1) // 2
        inner: Any = innermost(self.strategy)
        names = ("min_available_nodes", "min_train_nodes")
        least = max(getattr(inner, name, 0) for name in names)
        if buffer < least and not getattr(inner, "waits_for_clients", False):
            raise ValueError(
                f"buffer = {buffer}: {type(inner).__name__} waits for {least} clients, and a round "
                f"starts {buffer}: set its {names[0]} and {names[1]} to {buffer} or less"
            )
        return buffer

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy: the client grid chooses who starts."""
        timing = getattr(grid, "timing", None)
        if timing is None or not timing.buffer:
            raise ValueError(
                "FedBuff: its rounds are asynchronous only in its own start(), and not as a part "
                "of WarmStart: make it the outermost method"
            )
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the wrapped strategy, which gets replies to its current model."""
        return self.strategy.aggregate_train(server_round, replies)
