"""SCAFFOLD: control variates correct the client drift of local steps.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", ICML 2020, arXiv 1910.06378, Algorithm 1, option II.
With S the clients of the round, N the number of all clients and K the steps of a
client:

    client i in S:
        y_i <- y_i - eta (g_i(y_i) - c_i + c), K times from x
        c_i+ = c_i - c + (x - y_i) / (K eta)
    server:  x <- x + eta_g mean_S(y_i - x),    c <- c + (|S| / N) mean_S(c_i+ - c_i)

Counters and running statistics of normalisation layers are averaged.

A client could send any c_i+. Since ``c + c_i+ - c_i = (x - y_i) / (K eta)`` with K >=
1, and c itself for arrays that are not trained, the server shortens each of these
arrays to at most ``|x - y_i| / eta + |c|``: what a client adds to c is bounded by how
far it moves the model. Then the control arrays of a reply are shortened to three times
the largest norm of the other nine tenths (hardened: to three times the median).

Contract: the training message holds, after the model's arrays, c: one array
``control.NAME`` for each learned array NAME of the model. The reply has the same names
and shapes: y_i in the model's arrays and ``c + c_i+ - c_i`` in the others, so that the
difference between the reply and the message is the client's change. Each client stores
its c_i.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.schedule import local_rate
from fedapps.algorithms.contract.sent import Reads, ScaffoldSent
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import HALF, arrays_of, hold_mean, reference
from fedapps.strategies.base.named_grid import clients_of
from fedapps.strategies.base.relative_bounds import FEW, HARDENED
from fedapps.strategies.base.updates import learned, moved, updates
from fedapps.strategies.fedavg import FedAvg, FlowerArguments

CONTROL = "control."
ROUNDING = 1.01  # of the clients' sums
#: Growth of the control variates since the first round that shows divergence.
GROWTH = 10


@dataclass(frozen=True)
class ScaffoldOptions(Options):
    """Options of SCAFFOLD."""

    server_learning_rate: float = option(
        1.0,
        "eta_g, step along the clients' mean change; 1: the mean of their models",
        low=0,
        open_low=True,
    )


class Scaffold(FedAvg):
    """SCAFFOLD strategy."""

    client_half: Reads = (ScaffoldSent,)
    capabilities = Capabilities(
        replies="model", aggregation="single replies", subset=True, sums=True, beside=CONTROL
    )
    #: Why its clients cannot end a round early (``strategies.base.partial_work``).
    needs_all_steps = "its control variates are divided by the number of all local steps"

    def __init__(
        self, options: ScaffoldOptions | None = None, **kwargs: Unpack[FlowerArguments]
    ) -> None:
        super().__init__(weights="uniform", **kwargs)
        self.options = options or ScaffoldOptions()
        #: c by the names of the learned arrays; empty, which means 0, before the first
        #: round.
        self.c: dict[str, NDArray[Any]] = {}
        self._sent = ArrayRecord()
        self._num_clients = 0
        self._rate = 0.0  # eta of the round, if the server sends it
        self._first_size, self._grew = 0.0, False  # of the control variates
        self.models_sent: dict[str, int] = {}
        self.liars = FEW  # the share of longest variates that their bound does not go by

    def harden(self) -> None:
        """Bound the control variates by their median, as the models are."""
        self.liars = HALF

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model and c."""
        self._sent, self._num_clients = arrays, len(clients_of(grid))
        self.c = {
            name: self.c.get(name, np.zeros_like(values))
            for name, values in learned(arrays).items()
        }
        both = ArrayRecord(
            {
                **arrays,
                **{CONTROL + name: Array(*fields(values)) for name, values in self.c.items()},
            }
        )
        self._rate = local_rate(config, server_round)
        messages = list(super().configure_train(server_round, both, config, grid))
        # c is as large as the model
        self.models_sent = {"models-up": 0, "models-down": 2 * len(messages)}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the model and c with the means of the clients' changes."""
        valid = self.answered(replies)
        records = [arrays_of(reply.content)[0] for reply in valid]
        self._watch(server_round, records)
        if valid and not hold_mean(records):  # which may exceed the bound of one client
            for reply in valid if self._rate else ():
                self._shorten(arrays_of(reply.content)[0], reply.metadata.src_node_id)
            self._shorten_to_others(valid)
        average, metrics = super().aggregate_train(server_round, valid)
        if average is None:
            return None, metrics
        share = len(valid) / max(self._num_clients, len(valid))
        for name, values in self.c.items():
            self.c[name] = np.asarray(
                values + share * (read(average[CONTROL + name]) - values), dtype=values.dtype
            )
        model = ArrayRecord({name: average[name] for name in self._sent})
        (change,) = updates(self._sent, [model])
        self.models_sent["models-up"] = 2 * len(valid)
        return moved(self._sent, self.options.server_learning_rate * change, model), metrics

    def _watch(self, server_round: int, replies: list[ArrayRecord]) -> None:
        """Warn once if a client's control variate grows: then the model diverges, long
        before the other clients' variates grow, too.
        """
        size = max(map(self._size, replies), default=0.0)
        self._first_size = self._first_size or size
        if size > GROWTH * self._first_size and not self._grew:
            self._grew = True
            log(
                WARNING,
                "round %d: SCAFFOLD's control variates are up to %.0f times as large as in the "
                "first round, so it can end below FedAvg: lower the learning rate, the momentum "
                "or the local epochs",
                server_round,
                size / self._first_size,
            )

    def _shorten(self, reply: ArrayRecord, node: int) -> None:
        """Shorten the control arrays of a reply to what its model allows."""
        for name, c in self.c.items():
            control, change = (
                read(reply[CONTROL + name]),
                np.subtract(read(reply[name]), read(self._sent[name]), dtype=np.float64),
            )
            most = ROUNDING * (
                float(np.linalg.norm(change)) / self._rate + float(np.linalg.norm(c))
            )
            size = float(np.linalg.norm(control.astype(np.float64)))
            if size > most:
                log(
                    WARNING,
                    "node %d: its control variate of %s is shortened from %.3g to %.3g",
                    node,
                    name,
                    size,
                    most,
                )
                reply[CONTROL + name] = _scaled(control, most / size)

    def _shorten_to_others(self, replies: list[Message]) -> None:
        """Shorten the control arrays of each reply, together, to ``HARDENED`` times the
        norm of the others' (``reference``).
        """
        records = [arrays_of(reply.content)[0] for reply in replies]
        sizes = [self._size(record) for record in records]
        most = HARDENED * reference(sizes, self.liars)
        for reply, record, size in zip(replies, records, sizes, strict=True):
            if size > most:
                log(
                    WARNING,
                    "node %d: its control variates are shortened from %.3g to %.3g",
                    reply.metadata.src_node_id,
                    size,
                    most,
                )
                for name in self.c:
                    record[CONTROL + name] = _scaled(read(record[CONTROL + name]), most / size)

    def _size(self, record: ArrayRecord) -> float:
        """Return the norm of all control arrays of a reply."""
        norms = (np.linalg.norm(read(record[CONTROL + name])) for name in self.c)
        return math.hypot(*map(float, norms))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return c."""
        return dict(self.c)

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.c = dict(state)


def _scaled(values: NDArray[Any], factor: float) -> Array:
    return Array(*fields(np.asarray(values * factor, dtype=values.dtype)))
