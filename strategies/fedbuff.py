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

Fast clients reply more often. ``weights = "clients"`` is FedStaleWeight (Ma, Tu, Chen,
Janapa Reddi, 2024, arXiv 2406.02877): replies of slow clients count more, and old ones
no less. Its weight, derived for N clients of which C train at a time: the model changes
1 + s times from the question to client k until its reply counts, and then W = (N - C) /
B times until it is asked again, on average (Little's law: N - C clients are idle, and B
of them start per change). So a reply of k is in one of 1 + s_k + W changes, and with
the weight n_k (1 + s_k + W), s_k the mean over its replies so far, all clients would
count by their samples. As in the authors' code (github.com/18jeffreyma/afl-bench,
expected_staleness.py), weights are normalised in each buffer: a slow client's reply
counts at most as all of an update, so small buffers make up for a part only. There, all
clients train (W = 0), s_k stands for 1 + s_k, and the mean is that of five replies.

Contract: that of the wrapped strategy. How many clients train at a time is the client
grid's ``clients_per_round`` (0: all).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.strategies.base.capabilities import (
    Capabilities,
    declarer,
    require_declaration,
)
from fedapps.strategies.base.messages import innermost, metrics_of, weight_key, with_weight
from fedapps.strategies.base.named_grid import ClientId
from fedapps.strategies.base.staleness import check_stale
from fedapps.strategies.base.timing import STALENESS
from fedapps.strategies.base.wrapper import Wrapper
from fedapps.strategies.families.reweighting import metrics_as_replied


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
    weights: str = option(
        "replies",
        "replies: each reply counts, so fast clients count more; clients: replies of slow clients "
        "count more (FedStaleWeight), and old ones no less",
        choices=["replies", "clients"],
    )

    def check(self) -> None:
        """Check combinations of options."""
        if self.weights == "clients" and self.staleness != STALENESS:
            raise ValueError(
                f"staleness = {self.staleness:g}: weights = 'clients' does not use it: leave out "
                "one of them"
            )


class FedBuff(Wrapper):
    """Wrapper around ``strategy``. Raises ``ValueError`` if it takes more than an
    average of models or updates from the replies, or the options decide weights by
    which it does not average.
    """

    def __init__(self, strategy: Strategy, options: FedBuffOptions | None = None) -> None:
        check_stale(strategy, "FedBuff")
        self.strategy, self.options = strategy, options or FedBuffOptions()
        self._ages: dict[ClientId, list[int]] = {}  # sum and number of a client's ages
        self._grid: Any = None
        found = require_declaration(strategy, "FedBuff")
        if self._by_client and found.aggregation != "weighted average":
            raise ValueError(
                f"fedbuff.weights = 'clients', but {declarer(strategy)} does not average by the "
                "weights of the replies: wrap a strategy that does (FedAvg with weights = "
                "'samples', FedAdam, ...), or set it to 'replies'"
            )

    @property
    def _by_client(self) -> bool:
        return self.options.weights == "clients"

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
        return 0.0 if self._by_client else self.options.staleness

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
        self._grid = grid
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the wrapped strategy, which gets replies to its current model."""
        received = list(replies)
        if not self._by_client:
            return self.strategy.aggregate_train(server_round, received)
        with metrics_as_replied(self.strategy, [reply.content for reply in received]):
            return self.strategy.aggregate_train(server_round, self._weighed(received))

    def _weighed(self, replies: Sequence[Message]) -> list[Message]:
        """Return the replies with FedStaleWeight's weights."""
        grid, key = self._grid, weight_key(self.strategy)
        everyone = len(grid.clients)
        training = min(grid.clients_per_round or everyone, everyone)
        wait = (everyone - training) / grid.timing.buffer  # W
        weighed = []
        for reply in replies:
            client = grid.client_id(reply.metadata.src_node_id)
            ages = self._ages.setdefault(client, [0, 0])
            ages[0] += grid.last.ages.get(client, 0)
            ages[1] += 1
            samples = float(str(metrics_of(reply.content)[key]))  # n_k
            weighed.append(with_weight(reply, key, samples * (1 + ages[0] / ages[1] + wait)))
        return weighed

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the wrapped strategy's state and how old replies were."""
        ages = json.dumps(list(self._ages.items())).encode()
        own = {"fedbuff-ages": np.frombuffer(ages, np.uint8)} if self._by_client else {}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        rest = dict(state)
        if self._by_client:
            self._ages = dict(json.loads(rest.pop("fedbuff-ages").tobytes()))
        super().load_state_dict(rest)
