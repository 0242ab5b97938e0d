"""FedFW and FedFW+: federated Frank-Wolfe. Clients send atoms of a few numbers each, whatever the size of the model.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022: Algorithm 1 (``fedfw``), Algorithm 2
(``fedfw-plus``) and equation (3), a baseline that fails (``naive-fw``); corrections in ``docs/fedfw.md``.

Contract. Down: x_bar and, in the configuration, ``etas``, ``lambdas``, ``rhos`` (one of each per local step), ``lambda-0``,
``num-clients`` n, ``variant``, ``batch-size`` and ``stochastic``. Up: the packed atoms of the local steps, one after the other, and the
metrics ``num-examples`` and ``fresh`` = 1 if the client had no point of its own and started at this x_bar. If the configuration holds
``resync``, the reply holds x_i after the steps instead of the atoms.

x_bar is the mean of the clients' points. As long as the same clients reply in every round, ``(1 - eta) x_bar + eta mean(s_i)`` keeps
this invariant. If the set of replying clients changes, all clients are asked for their points once, and x_bar is set to their mean.
With partial participation the server keeps a copy of every client's point (n times the model) and updates it with the atoms: ``x_bar``
is the mean over all clients, including those that did not move; a client whose reply was lost is asked for its point the next time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from algorithms.common.checks import check_choice
from algorithms.common.options import Options, option
from algorithms.common.wire import read
from algorithms.frank_wolfe.atoms import Array, Atom
from algorithms.frank_wolfe.domain import Domain
from algorithms.frank_wolfe.steps import SCHEDULES, Schedule, server_step, server_step_partial
from strategies.base.client_grid import ClientId, clients_of, pack_ids, unpack_ids
from strategies.base.messages import arrays_of, metrics_of
from strategies.families.consensus import Constrained, Measure

VARIANTS = ("fedfw", "fedfw-plus", "naive-fw")


@dataclass(frozen=True)
class FedFWOptions(Options):
    """Options of FedFW, FedFW+ and naive federated Frank-Wolfe."""

    lambda_0: float = option(0.0, "penalty on the distance from consensus; 0: the task's", low=0)
    schedule: str = option(
        "convex", "schedule of steps and penalty; non-convex: fixed steps, stochastic: averaged gradients", choices=SCHEDULES
    )
    local_steps: int = option(1, "Frank-Wolfe steps a round, with the same mean point", low=1)
    batch_size: int = option(0, 'samples of a gradient, with schedule = "stochastic"; 0: all', low=0)
    tolerance: float = option(0.0, "stop once an evaluation finds a duality gap of at most this; 0: never", low=0)

    def check(self) -> None:
        """Reject mini-batches with a schedule that does not average gradients."""
        if self.batch_size and self.schedule != "stochastic":
            raise ValueError(
                f"batch-size = {self.batch_size}, schedule = {self.schedule!r}: only 'stochastic' averages gradients: choose it, or 0"
            )


@dataclass
class _Round:
    """What was sent in a round, as aggregate_train needs it."""

    x_bar: Array = field(default_factory=lambda: np.zeros(0))
    names: Sequence[str] = ()
    etas: Sequence[float] = ()
    ids: dict[int, ClientId] = field(default_factory=dict)  # all connected clients, by node
    asked: list[ClientId] = field(default_factory=list)
    resync: list[ClientId] = field(default_factory=list)

    @property
    def partial(self) -> bool:
        return len(self.asked) < len(self.ids)


@dataclass
class _Reply:
    client: ClientId
    atoms: list[Atom]
    point: Array | None
    fresh: bool


class FedFW(Constrained):
    """FedFW strategy; ``variant``: fedfw, fedfw-plus or naive-fw. ``lambda_0``: the penalty weight if it is 0 in the options."""

    capabilities = Constrained.capabilities  # it tracks every client's point

    def __init__(
        self,
        domain: Domain,
        options: FedFWOptions | None = None,
        variant: str = "fedfw",
        *,
        lambda_0: float = 1.0,
        measure: Measure | None = None,
        **kwargs: Any,
    ) -> None:
        self.options = options or FedFWOptions()
        super().__init__(domain, tolerance=self.options.tolerance, measure=measure, **kwargs)
        check_choice("variant", variant, VARIANTS)
        self.variant = variant
        self.lambda_0 = self.options.lambda_0 or lambda_0
        self.members: list[ClientId] = []  # full participation: the clients whose points have the mean x_bar
        self.suspects: set[ClientId] = set()  # clients whose points the server does not know
        self.points: dict[ClientId, Array] = {}  # partial participation: copies of the clients' points
        self._sent = _Round()

    # --- a round ---------------------------------------------------------------------------------------------------

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Send x_bar and the step sizes and penalties of the round."""
        ids = clients_of(grid)
        nodes = self._sample(grid, server_round, self.fraction_train, self.min_train_nodes)
        now = _Round(self.open_model(arrays, server_round), list(arrays), (), ids, [ids[node] for node in nodes])
        config["server-round"] = server_round  # Flower's own loop leaves this to the strategy
        local, num_rounds = self.options.local_steps, int(str(config.get("num-rounds", server_round)))
        schedule = Schedule(self.lambda_0, self.options.schedule, num_rounds * local, len(nodes) / len(ids))
        steps = [schedule.at((server_round - 1) * local + k + 1) for k in range(local)]
        now.etas = [step.eta for step in steps]
        config.update(
            {
                "etas": now.etas,
                "lambdas": [step.lambda_ for step in steps],
                "rhos": [step.rho for step in steps],
                "lambda-0": self.lambda_0,
                "num-clients": len(ids),
                "variant": self.variant,
                "batch-size": self.options.batch_size,
                "stochastic": self.options.schedule == "stochastic",
            }
        )
        now.resync = [client for client in now.asked if client in self.suspects]
        self._sent = now
        told = [node for node in nodes if ids[node] not in self.suspects]
        messages = self._messages(arrays, config, told, MessageType.TRAIN)
        if now.resync:
            asked = [node for node in nodes if ids[node] in self.suspects]
            messages += self._messages(arrays, ConfigRecord({**config, "resync": True}), asked, MessageType.TRAIN)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move x_bar along the atoms; a reply that holds no atoms of the domain is left out."""
        now = self._sent
        sound = [reply for reply in replies if not reply.has_error()]
        used = [opened for reply in sound if (opened := self._open(reply, now))]
        if not used:
            self._missed(now, [])
            return None, None
        if self.variant == "naive-fw":
            self._step(now, used)
        elif now.partial:
            self._replay(now, used)
        else:
            self._move(now, used)
        return self.model(now.x_bar, now.names), self.train_metrics_aggr_fn([r.content for r in sound], self.weighted_by_key)

    def _open(self, reply: Message, now: _Round) -> _Reply | None:
        client = now.ids[reply.metadata.src_node_id]
        try:
            arrays = [read(array) for record in arrays_of(reply.content) for array in record.values()]
            fresh = bool(metrics_of(reply.content).get("fresh", 0))
            if client in now.resync:
                point = self.domain.join(arrays)
                if not self.domain.contains(point, 1e-4):
                    raise ValueError("its point lies outside of the domain")
                return _Reply(client, [], np.array(point, now.x_bar.dtype), fresh)
            size = self.domain.num_arrays
            if len(arrays) != size * len(now.etas):
                raise ValueError(f"{len(arrays)} arrays, but {len(now.etas)} packed atoms have {size * len(now.etas)}")
            atoms = [self.domain.unpack(arrays[k : k + size]) for k in range(0, len(arrays), size)]
            return _Reply(client, atoms, None, fresh)
        except ValueError as error:
            log(WARNING, "client %s left out: %s", client, error)
            return None

    def _step(self, now: _Round, used: list[_Reply]) -> None:
        for k, eta in enumerate(now.etas):
            server_step(now.x_bar, [reply.atoms[k] for reply in used], eta)

    def _move(self, now: _Round, used: list[_Reply]) -> None:
        """Full participation: x_bar remains the mean of the members' points, or is set to the mean of the points in the replies."""
        answered = [reply.client for reply in used]
        points = [reply.point for reply in used if reply.point is not None]
        if points:
            now.x_bar[...] = sum(point.astype(np.float64) for point in points) / len(points)
            self.members, self.suspects = [reply.client for reply in used if reply.point is not None], set()
            return
        self._step(now, used)
        strangers = bool(self.members) and (answered != self.members or any(reply.fresh for reply in used))
        self.members = self.members or answered
        if strangers:
            self._missed(now, answered)

    def _missed(self, now: _Round, answered: list[ClientId]) -> None:
        """Record whose points are unknown from now on: with full participation all of them, since only their mean is known."""
        lost = [client for client in now.asked if client not in answered]
        if now.partial:
            self.suspects |= set(lost)
        elif self.members and self.variant != "naive-fw":
            log(INFO, "other clients answered than before: all are asked for their points once")
            self.suspects = set(now.ids.values())

    def _replay(self, now: _Round, used: list[_Reply]) -> None:
        """Partial participation: apply the clients' steps to the copies of their points."""
        n, sent = len(now.ids), now.x_bar.copy()
        gone = [client for client in self.points if client not in now.ids.values()]
        for client in gone:
            del self.points[client]
        for client in now.ids.values():  # a new client starts at x_bar, which leaves the mean unchanged
            self.points.setdefault(client, sent.copy())
        if gone:
            now.x_bar[...] = sum(self.points.values()) / n
        for reply in used:
            if reply.point is not None or reply.fresh:
                told = sent.copy() if reply.point is None else reply.point
                now.x_bar += (told - self.points[reply.client]) / n
                self.points[reply.client] = told
                self.suspects.discard(reply.client)
        moving = [reply for reply in used if reply.point is None]
        for k, eta in enumerate(now.etas):
            points = [self.points[reply.client] for reply in moving]
            server_step_partial(now.x_bar, points, [reply.atoms[k] for reply in moving], eta, n)
        self._missed(now, [reply.client for reply in used])

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the members, the clients with unknown points, and the copies of the points."""
        state: dict[str, NDArray[Any]] = {}
        for name, clients in (("members", self.members), ("suspects", list(self.suspects)), ("clients", list(self.points))):
            if clients:
                state[name] = pack_ids(clients)
        return state | ({"points": np.stack(list(self.points.values()))} if self.points else {})

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        members, suspects, clients = (unpack_ids(state[k]) if k in state else [] for k in ("members", "suspects", "clients"))
        self.members, self.suspects = members, set(suspects)
        self.points = {client: point.copy() for client, point in zip(clients, state.get("points", []), strict=True)}
