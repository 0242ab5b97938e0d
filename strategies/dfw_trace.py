"""DFW-Trace: Frank-Wolfe over a nuclear-norm ball or a spectrahedron by distributed
power iterations. Clients send one vector.

All clients work at one common point x. The oracle of these domains needs the top
singular pair of G = (1/n) sum_i G_i, which power iterations find from products with
vectors, and a product with a sum is a sum of products:

    u <- sum_i G_i v, normalised;
        v <- sum_i G_i' u, normalised                   (nuclear norm; a half step each)
    v <- sum_i (c v - G_i v), normalised  (spectrahedron, symmetric G_i; a whole step)
    after ``power-iterations`` of them:
        x <- (1 - eta_t) x + eta_t atom(u, v),   eta_t = 2/(t + offset + 1)

The next step's iteration begins with the last v. No consensus is needed, and clients
keep no state.

Contract. Down: the arrays of x (and its constants), the vector as array ``vector``;
``config``: ``side`` = ``right`` (reply with G_i v) or ``left`` (G_i' u). Up: one array,
the product, float64; ``metrics``: ``num-examples`` and ``inner`` = <G_i, x>. Only sums
of the products and of ``inner`` are used, so a secure sum suffices.

A half step is complete when every client has answered it. A client that has answered is
not asked again, so sampling and lost replies cost rounds, not accuracy. A client that
fails to answer ``PATIENCE`` times is skipped in this half step: too many rounds that
ask only failing clients would look like a run in which no client answers.

v has length 1, so a product is no longer than the largest singular value of G_i, which
only the client knows. A product longer than ``longest-product`` times the median of
those heard in this half step is shortened to that. Near the solution the products of
sound clients cancel, and a liar counts for more: choose 1 where clients may lie.

Source: Zheng, Bellet, Gallinari, "A Distributed Frank-Wolfe Framework for Learning
Low-Rank Matrices with the Trace Norm", Machine Learning 107, 2018, DOI
10.1007/s10994-018-5713-5, arXiv 1712.07495, Algorithm 2. There workers keep x and
receive atoms; here x is sent, so that a client may come and go.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.common.robust import shortening
from fedapps.algorithms.contract.sent import DFWTraceSent
from fedapps.algorithms.frank_wolfe.domain import Domain, Float64
from fedapps.algorithms.frank_wolfe.power_iteration import PowerIteration
from fedapps.algorithms.frank_wolfe.steps import move
from fedapps.strategies.base.messages import metrics_of, round_of, to_record, values_in
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.strategies.families.consensus import Constrained
from fedapps.strategies.fedavg import FedAvgArguments

VECTOR, GAP = "vector", "gap-estimate"
#: A client is skipped in a half step after this many lost replies.
PATIENCE = 2


@dataclass(frozen=True)
class DFWTraceOptions(Options):
    """Options of DFW-Trace."""

    power_iterations: int = option(
        1, "power iterations per step, each starting from the previous vector", low=1
    )
    offset: int = option(
        2,
        "the schedule starts as if this many steps had been taken: it keeps more of a good start",
        low=0,
    )
    longest_product: float = option(
        5.0, "longer products are shortened to this many times the median length; 0: any", low=0
    )


class DFWTrace(Constrained):
    """DFW-Trace strategy. Raises ``ValueError`` unless the domain is a nuclear-norm
    ball or a spectrahedron.
    """

    def __init__(
        self,
        domain: Domain,
        options: DFWTraceOptions | None = None,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        self.options = options or DFWTraceOptions()
        super().__init__(domain, **kwargs)
        self.power = PowerIteration(domain, self.options.power_iterations)
        self.steps_taken = 0
        # lower bound for the last step: a power iteration finds at most the largest
        # singular value
        self.gap: float | None = None
        self._sum: Float64 | None = None  # of the half step's products
        self._lengths: list[float] = []  # of these products
        self._inner = 0.0
        self._answered: set[ClientId] = set()
        self._lost: dict[ClientId, int] = {}
        self._ids: Mapping[int, ClientId] = {}
        self._called: list[ClientId] = []

    def harden(self) -> None:
        """Let no product be longer than the median one."""
        self.options = replace(self.options, longest_product=1.0)

    def configure_step(
        self, step: int, num_steps: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a round's number of clients, of those that have not answered this half
        step.
        """
        self._ids = clients_of(grid)
        nodes = self._sample(grid, round_of(config), MessageType.TRAIN)
        waiting = [node for node in self._ids if self._waits_for(self._ids[node])]
        drawn = [node for node in nodes if node in waiting]
        nodes = drawn + [node for node in waiting if node not in drawn][: len(nodes) - len(drawn)]
        self._called = [self._ids[node] for node in nodes]
        if all(self._lost.get(client, 0) for client in self._called):
            # These clients may all fail again, and a round without replies is not
            # aggregated: also ask one client that has already answered.
            nodes += [node for node, client in self._ids.items() if client in self._answered][:1]
        config.update(DFWTraceSent(self.power.side).to_config())
        content = ArrayRecord({**arrays, **to_record([VECTOR], [self.power.vector])})
        return self._messages(
            content, config, sorted(nodes, key=list(self._ids).index), MessageType.TRAIN
        )

    def _waits_for(self, client: ClientId) -> bool:
        return client not in self._answered and self._lost.get(client, 0) < PATIENCE

    def aggregate_step(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the products; when all clients have answered, finish the half step, and
        move x if it ends the iteration.
        """
        products: dict[ClientId, Float64] = {}
        for reply in self.answered(replies):
            try:
                self._open(reply, products)
            except ValueError as error:
                log(WARNING, "skipped node %d: %s", reply.metadata.src_node_id, error)
        self._add(products)
        for client in self._called:
            if client not in self._answered:
                self._lost[client] = self._lost.get(client, 0) + 1
        if self._sum is None or any(map(self._waits_for, self._ids.values())):
            return None, None
        total, inner, count = self._sum, self._inner, len(self._answered)
        if absent := [client for client in self._ids.values() if client not in self._answered]:
            log(
                WARNING,
                "skipped in this half step, after %d lost replies each: clients %s",
                PATIENCE,
                absent[:5],
            )
        self._sum, self._inner, self._answered, self._lost = None, 0.0, set(), {}
        self._lengths = []
        atom = self.power.take(total / count)
        if atom is None:
            return None, None
        self.steps_taken += 1
        self.gap = inner / count + self.power.value  # <G, x> - <G, atom>
        x = self.open_model(self._model)
        move(x, atom, 2 / (self.steps_taken + self.options.offset + 1))
        return self.model(x), MetricRecord({GAP: self.gap, "steps": self.steps_taken})

    def _open(self, reply: Message, products: dict[ClientId, Float64]) -> None:
        client = self._ids[reply.metadata.src_node_id]
        arrays = values_in(reply.content)
        inner = metrics_of(reply.content).get("inner")
        wanted = self.power.size
        if [array.shape for array in arrays] != [(wanted,)] or arrays[0].dtype != np.float64:
            raise ValueError(f"its product is not one array of {wanted} float64 numbers")
        if not isinstance(inner, int | float):
            raise ValueError("its metric 'inner' is missing")
        if client in self._answered:
            return
        products[client] = arrays[0]
        self._inner += float(inner)
        self._answered.add(client)

    def _add(self, products: Mapping[ClientId, Float64]) -> None:
        """Add the products (k,) of a round to the sum, none far longer than most of
        this half step.
        """
        self._lengths += [float(np.linalg.norm(product)) for product in products.values()]
        factors = self._factors()[len(self._lengths) - len(products) :]
        for (client, product), factor in zip(products.items(), factors, strict=True):
            if factor < 1:
                log(WARNING, "client %s: its product is shortened to %.3g of it", client, factor)
                product = product * factor
            self._sum = product.copy() if self._sum is None else self._sum + product

    def _factors(self) -> Float64:
        most, lengths = self.options.longest_product, np.array(self._lengths)
        return shortening(lengths, most) if most else np.ones(len(lengths))

    def _gap(self, valid: list[Message]) -> dict[str, float]:
        """Return the estimate of the last step, at the x before it. No gradient is
        sent.
        """
        return {} if self.gap is None else {GAP: self.gap}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the iteration's vectors and the sum of an unfinished half step."""
        state = super().state_dict() | under("power.", self.power.state_dict())
        state["steps"] = np.array(
            [self.steps_taken, np.nan if self.gap is None else self.gap, self._inner]
        )
        if self._sum is not None:
            state |= {"sum": self._sum, "answered": pack_ids(sorted(self._answered, key=str))}
            state["lengths"] = np.array(self._lengths)
        if self._lost:
            state |= {
                "losers": pack_ids(list(self._lost)),
                "lost": np.array(list(self._lost.values())),
            }
        return state

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if self.preparation:
            super().load_state_dict(state)
        self.power.load_state_dict(within("power.", state))
        steps, gap, self._inner = (float(value) for value in state["steps"])
        self.steps_taken, self.gap = int(steps), None if math.isnan(gap) else gap
        self._sum = state.get("sum")
        self._lengths = [float(length) for length in state.get("lengths", [])]
        self._answered = set(unpack_ids(state["answered"])) if "answered" in state else set()
        losers = unpack_ids(state["losers"]) if "losers" in state else []
        self._lost = {client: int(state["lost"][k]) for k, client in enumerate(losers)}
