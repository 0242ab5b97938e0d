"""Floco: the head of the model is a point of a simplex between M heads; each client
trains and uses the part of the simplex that fits it.

Source: Grinwald, Wiesner, Nakajima, "Federated Learning over Connected Modes", NeurIPS
2024, arXiv 2403.03333, Algorithm 1. With the body b and the corners w_1 .. w_M of the
head:

    client: a mini-batch at (b, sum_m alpha_m w_m); all of b, w_1, ..., w_M descend
            alpha uniform in the simplex, after round tau near the client's point
    server: averages b and the corners; after round tau = start * num_rounds it
            projects the clients' updates of the corners on points of the simplex
            (``algorithms/personal/simplex.py``)

The server's model is the centre of the simplex, and a client is scored at its point.

Differences: the corners start around the head of the initial model, with its mean.
Near the point p, alpha lies on the line to a uniform point of the simplex, at most
``radius`` from p (sum of absolute differences), so it stays in the simplex. No round
asks all clients: a client's last update before the projection counts, and a client that
answers later is projected then.

Contract: a message holds the model, whose head is w_1, then under ``corner-J.NAME`` the
others. Both configurations hold ``floco-corners``, M; ``floco-at``, which arrays have
corners; ``floco-radius``; and for a client with a point ``floco-point``, M numbers. A
reply holds the arrays that were sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.sent import FlocoSent, Reads
from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.personal.simplex import Projection
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import arrays_of
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

CORNER = "corner-{}.{}"
Floats = NDArray[np.float64]
Named = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class FlocoOptions(Options):
    """Options of Floco."""

    corners: int = option(10, "M, the number of heads that span the simplex", low=2)
    radius: float = option(
        0.3, "how far from its point a client trains, in sums of absolute differences", low=0
    )
    start: float = option(
        0.5, "tau / T, the share of the rounds before clients have points", low=0, high=1
    )


class Floco(FedAvg):
    """Floco strategy. ``head``: prefixes of the names of the head's parameters;
    ``seed``: of the first corners. Raises ``ValueError`` if the model has no such
    arrays.
    """

    client_half: Reads = (FlocoSent,)
    scheduled = True
    capabilities = Capabilities("model", "single replies")

    def __init__(
        self,
        head: Sequence[str],
        options: FlocoOptions | None = None,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.head, self.options, self.seed = tuple(head), options or FlocoOptions(), seed
        #: The corners (M, ...) of each array of the head.
        self.corners: Named = {}
        self.projection: Projection | None = None
        #: The points (M,) of clients; before the projection, their updates.
        self.points: dict[ClientId, Floats] = {}
        self.signals: dict[ClientId, Floats] = {}
        self._ids: Mapping[int, ClientId] = {}
        self._at: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the simplex, and each client its point; project first, if it is time."""
        if self.signals and server_round > self.options.start * self.rounds_in(
            config, server_round
        ):
            updates = np.stack([*self.signals.values()])
            self.projection = Projection.of(updates, self.options.corners)
            found = self.projection.points(updates)
            self.points, self.signals = dict(zip(self.signals, found, strict=True)), {}
        simplex = self._simplex(arrays)
        return self._pointed(super().configure_train(server_round, simplex, config, grid), grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the simplex, and each client its point."""
        simplex = self._simplex(arrays)
        return self._pointed(super().configure_evaluate(server_round, simplex, config, grid), grid)

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send what a client needs to find its way in the simplex."""
        return FlocoSent(self.options.corners, self._at, self.options.radius).to_config()

    evaluate_options = train_options

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average body and corners; note the clients' updates of the corners."""
        valid = self.answered(replies)
        average, metrics = super().aggregate_train(server_round, valid)
        if average is None:
            return None, metrics
        for reply in valid:
            client = self._ids.get(reply.metadata.src_node_id, reply.metadata.src_node_id)
            if client not in self.points:
                trained = self._corners(arrays_of(reply.content)[0])
                signal = np.concatenate(
                    [(trained[n] - w).ravel() for n, w in self.corners.items()]
                ).astype(np.float64)
                if self.projection:
                    self.points[client] = self.projection.points(signal[None])[0]
                else:
                    self.signals[client] = signal
        self.corners = self._corners(average)
        centre = {n: w.mean(0).astype(w.dtype) for n, w in self.corners.items()}
        model = {name: average[name] for name in list(average)[: self._size]}
        return ArrayRecord({**model, **{n: Array(*fields(w)) for n, w in centre.items()}}), metrics

    def state_dict(self) -> Named:
        """Return corners, points or updates, and the projection."""
        state = {f"corners.{name}": w for name, w in self.corners.items()}
        if known := self.points or self.signals:
            state |= {"clients": pack_ids(known), "known": np.stack([*known.values()])}
        if now := self.projection:
            state |= {"mean": now.mean, "axes": now.axes, "z": np.array(now.z)}
        return state

    def load_state_dict(self, state: Named) -> None:
        """Restore what :meth:`state_dict` returned."""
        prefix = "corners."
        self.corners = {n.removeprefix(prefix): w for n, w in state.items() if n.startswith(prefix)}
        known = (
            dict(zip(unpack_ids(state["clients"]), state["known"], strict=True))
            if "clients" in state
            else {}
        )
        projected = "z" in state
        self.points, self.signals = (known, {}) if projected else ({}, known)
        self.projection = (
            Projection(state["mean"], state["axes"], float(state["z"])) if projected else None
        )

    # --- parts ------------------------------------------------------------------------

    def _simplex(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the model with the first corner as its head, and the other corners."""
        self.corners = self.corners or self._first(arrays)
        self._size, self._at = len(arrays), [list(arrays).index(name) for name in self.corners]
        named = {name: w[0] for name, w in self.corners.items()}
        for j in range(1, self.options.corners):
            named |= {CORNER.format(j, name): w[j] for name, w in self.corners.items()}
        return ArrayRecord({**arrays, **{n: Array(*fields(w)) for n, w in named.items()}})

    def _first(self, arrays: ArrayRecord) -> Named:
        """Return corners around the head of a model, with its mean: normal, of variance
        1 / inputs; biases are equal at first.
        """
        heads = {n: read(a) for n, a in arrays.items() if n.startswith(self.head)}
        if not heads:
            raise ValueError(f"head = {list(self.head)}: the model has no such arrays")
        rng, corners = generator(self.seed, "corners"), {}
        for name, w in heads.items():
            scale = w[0].size ** -0.5 if w.ndim > 1 else 0.0
            off = rng.normal(0, 1, (self.options.corners, *w.shape)) * scale
            corners[name] = (w + off - off.mean(0)).astype(w.dtype)
        return corners

    def _corners(self, record: ArrayRecord) -> Named:
        """Return the corners in a record that was sent or came back."""
        others = range(1, self.options.corners)
        return {
            name: np.stack(
                [read(record[n]) for n in (name, *(CORNER.format(j, name) for j in others))]
            )
            for name in self.corners
        }

    def _pointed(self, messages: Iterable[Message], grid: Grid) -> list[Message]:
        """Return the messages with the points of their clients."""
        self._ids, key = clients_of(grid), FlocoSent.key("point")
        out = []
        for message in messages:
            node = message.metadata.dst_node_id
            point = self.points.get(self._ids.get(node, node))
            if point is not None:
                config = message.content.config_records[self.configrecord_key]
                own = ConfigRecord({**config, key: point.tolist()})
                content = RecordDict({**message.content, self.configrecord_key: own})
                message = Message(
                    content,
                    message_type=message.metadata.message_type,
                    dst_node_id=node,
                    group_id=message.metadata.group_id,
                )
            out.append(message)
        return out
