"""FedFW and FedFW+: federated Frank-Wolfe. Clients send atoms of a few numbers each,
whatever the size of the model.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022:
Algorithm 1 (``fedfw``), Algorithm 2 (``fedfw-plus``) and equation (3), a baseline that
fails (``naive-fw``); corrections in ``docs/fedfw.md``.

Contract. Down: x_bar and, in the configuration, ``etas``, ``lambdas``, ``rhos`` (one of
each per local step), ``dual-step``, ``num-clients`` n, ``variant``, ``batch-size`` and
``stochastic``. Up: the packed atoms of the local steps, one after the other, and the
metrics ``num-examples`` and ``fresh`` = 1 if the client had no point yet and
started at this x_bar. If the configuration holds ``resync``, the reply holds x_i after
the steps instead of the atoms, and for FedFW+ y_i after it. If it holds ``dual-mean``,
the arrays ``dual.NAME`` after those of x_bar are the mean of the clients' dual
variables, which a client subtracts from its own.

x_bar is the mean of the clients' points, and FedFW+ minimises F + <sum_i dual_i, x>, so
the dual terms must sum to 0. While all clients reply in every round, ``(1 - eta) x_bar
+ eta mean(s_i)`` is the mean and sum_i y_i stays 0. Otherwise (clients are sampled, a
reply was lost, a client joined) the server keeps copies of every client's x_i and y_i,
which it updates as the clients do: x_bar is the mean over all of them, and the mean of
the y_i is sent. A client whose reply was lost is asked for its state the next time.
After ``PATIENCE`` lost replies in a row it does not count in the means until it answers
again.
Derivation: ``docs/fedfw.md``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, check_choice, option
from fedapps.algorithms.contract.sent import FedFWExtras, FedFWSent
from fedapps.algorithms.frank_wolfe.domain import Array, Atom, Domain
from fedapps.algorithms.frank_wolfe.steps import (
    SCHEDULES,
    Schedule,
    automatic_lambda_0,
    dual_step,
    server_step,
    server_step_partial,
)
from fedapps.strategies.base.messages import metrics_of, round_of, to_record, values_in
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.strategies.families.consensus import Constrained
from fedapps.strategies.fedavg import FedAvgArguments

VARIANTS = ("fedfw", "fedfw-plus", "naive-fw")
DUAL = "dual."
#: A client does not count in the means after this many lost replies in a row.
PATIENCE = 3


@dataclass(frozen=True)
class FedFWOptions(Options):
    """Options of FedFW, FedFW+ and naive federated Frank-Wolfe."""

    PRINTED = MappingProxyType({"dual_step": 0.0})

    lambda_0: float = option(0.0, "penalty on the distance from consensus; 0: the task's", low=0)
    dual_step: float = option(
        0.3, "dual step of FedFW+ / (step size * penalty); 0: lambda-0, as printed", low=0
    )
    offset: int = option(
        0,
        "the schedule starts as if this many steps had been taken: it keeps more of a good start",
        low=0,
    )
    schedule: str = option(
        "convex",
        "schedule of steps and penalty; non-convex: fixed steps, stochastic: averaged gradients",
        choices=SCHEDULES,
    )
    local_steps: int = option(1, "Frank-Wolfe steps per round, with the same mean point", low=1)
    batch_size: int = option(
        0, 'samples of a gradient, with schedule = "stochastic"; 0: all', low=0
    )
    tolerance: float = option(
        0.0, "stop once an evaluation finds a duality gap of at most this; 0: never", low=0
    )

    def check(self) -> None:
        """Reject mini-batches with a schedule that does not average gradients."""
        if self.batch_size and self.schedule != "stochastic":
            raise ValueError(
                f"batch-size = {self.batch_size}, schedule = {self.schedule!r}: mini-batches need "
                "schedule = 'stochastic'; choose it, or batch-size = 0"
            )


@dataclass
class _Round:
    """The parts of a round's messages that aggregate_train needs."""

    x_bar: Array = field(default_factory=lambda: np.zeros(0))
    etas: Sequence[float] = ()
    dual_step: float = 0.0
    ids: Mapping[int, ClientId] = field(default_factory=dict)  # all connected clients, by node
    asked: list[ClientId] = field(default_factory=list)
    resync: list[ClientId] = field(default_factory=list)
    step: int = 0


@dataclass
class _Reply:
    client: ClientId
    atoms: list[Atom]
    point: Array | None  # x_i and, for FedFW+, y_i: of a client that was asked for its state
    dual: Array | None
    fresh: bool


class FedFW(Constrained):
    """FedFW strategy; ``variant``: fedfw, fedfw-plus or naive-fw.

    ``lambda_0``: the penalty weight if it is 0 in the options; if both are 0, it is
    computed from the ``curvature`` of every f_i in the directions in which it is not
    flat (:func:`~fedapps.algorithms.frank_wolfe.steps.automatic_lambda_0`).
    """

    def __init__(
        self,
        domain: Domain,
        options: FedFWOptions | None = None,
        variant: str = "fedfw",
        *,
        lambda_0: float = 1.0,
        curvature: float = 0.0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        self.options = options or FedFWOptions()
        super().__init__(domain, tolerance=self.options.tolerance, **kwargs)
        check_choice("variant", variant, VARIANTS)
        if not self.options.lambda_0 and not lambda_0 and not curvature > 0:
            raise ValueError(
                "lambda_0 = 0: pass a penalty above 0, or the curvature to compute it from"
            )
        self.variant = variant
        self.given_lambda_0, self.curvature = self.options.lambda_0 or lambda_0, curvature
        self.lambda_0 = self.given_lambda_0
        # while all answer: the clients whose points have the mean x_bar
        self.members: list[ClientId] = []
        self.suspects: set[ClientId] = set()  # clients whose state the server does not know
        self.points: dict[ClientId, Array] = {}  # otherwise: copies of the clients' points
        self.duals: dict[ClientId, Array] = {}  # and, for FedFW+, of their dual variables
        self._new: set[ClientId] = set()  # those of them that have not answered yet
        self._lost: dict[ClientId, int] = {}  # replies lost in a row
        self._sent = _Round()

    # --- a round ----------------------------------------------------------------------

    def configure_step(
        self, step: int, num_steps: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send x_bar and the step sizes and penalties of the round."""
        ids = clients_of(grid)
        if not (nodes := self._sample(grid, round_of(config), MessageType.TRAIN)):
            return []
        now = _Round(self.open_model(arrays), ids=ids, asked=[ids[node] for node in nodes])
        local = self.options.local_steps
        share = len(nodes) / len(ids)
        self.lambda_0 = self.given_lambda_0 or automatic_lambda_0(
            self.curvature,
            len(ids),
            num_steps * local,
            self.options.schedule,
            share,
            self.options.offset,
        )
        schedule = Schedule(
            self.lambda_0,
            self.options.schedule,
            num_steps * local,
            share,
            self.options.offset,
            self.options.dual_step,
        )
        steps = [schedule.at((step - 1) * local + k + 1) for k in range(local)]
        now.etas, now.dual_step = [step.eta for step in steps], steps[0].dual
        sent = FedFWSent(
            etas=now.etas,
            lambdas=[step.lambda_ for step in steps],
            rhos=[step.rho for step in steps],
            dual_step=now.dual_step,
            num_clients=len(ids),
            variant=self.variant,
            batch_size=self.options.batch_size,
            stochastic=self.options.schedule == "stochastic",
        )
        config.update(sent.to_config())
        config.pop(FedFWExtras.key("dual_mean"), None)  # set in the round before
        now.step = step
        now.resync = [client for client in now.asked if client in self.suspects]
        self._sent = now
        if self.variant != "naive-fw" and (self.points or len(nodes) < len(ids)):
            arrays = self._track(now, arrays)
            if self.variant == "fedfw-plus":
                names = [DUAL + name for name in self.layer_names]
                mean = to_record(names, self.domain.split(self._dual_mean(now)))
                arrays = ArrayRecord({**arrays, **mean})
                config.update(FedFWExtras(dual_mean=True).to_config())
        known = [node for node in nodes if ids[node] not in self.suspects]
        messages = self._messages(arrays, config, known, MessageType.TRAIN)
        if now.resync:
            unknown = [node for node in nodes if ids[node] in self.suspects]
            resync = ConfigRecord({**config, **FedFWExtras(resync=True).to_config()})
            messages += self._messages(arrays, resync, unknown, MessageType.TRAIN)
        return messages

    def aggregate_step(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move x_bar along the atoms; skip replies that hold no atoms of the domain."""
        now = self._sent
        valid = self.answered(replies)
        used = [opened for reply in valid if (opened := self._open(reply, now))]
        if not used:
            self._missed(now, [])
            return None, None
        if self.variant == "naive-fw":
            self._step(now, used)
        elif self.points:
            self._replay(now, used)
        else:
            self._move(now, used)
        return self.model(now.x_bar), self.train_metrics_aggr_fn(
            [r.content for r in valid], self.weighted_by_key
        )

    def _open(self, reply: Message, now: _Round) -> _Reply | None:
        client = now.ids[reply.metadata.src_node_id]
        try:
            arrays = values_in(reply.content)
            fresh = bool(metrics_of(reply.content).get("fresh", 0))
            if client in now.resync:
                return self._state_of(client, arrays, fresh, now)
            size = self.domain.num_arrays
            if len(arrays) != size * len(now.etas):
                raise ValueError(
                    f"its reply holds {len(arrays)} arrays, but {len(now.etas)} packed atoms need "
                    f"{size * len(now.etas)}"
                )
            atoms = [self.domain.unpack(arrays[k : k + size]) for k in range(0, len(arrays), size)]
            return _Reply(client, atoms, None, None, fresh)
        except ValueError as error:
            log(WARNING, "skipped client %s: %s", client, error)
            return None

    def _state_of(
        self, client: ClientId, arrays: list[NDArray[Any]], fresh: bool, now: _Round
    ) -> _Reply:
        """Return the state in a reply to ``resync``. Raises ``ValueError`` if the reply
        holds none.

        y_i is the sum of lambda_0 (x_i - x_bar) over the rounds, of which no term is
        longer than lambda_0 times the diameter of the domain. Twice that is allowed:
        an automatic lambda_0 changes with the number of clients.
        """
        plus = self.variant == "fedfw-plus"
        half = len(arrays) // 2 if plus else len(arrays)
        point = self.domain.join(arrays[:half])
        if not self.domain.contains(point, 1e-4):
            raise ValueError("its point lies outside the domain")
        dual = np.array(self.domain.join(arrays[half:]), now.x_bar.dtype) if plus else None
        if dual is not None:
            norm, most = np.linalg.norm(dual), 2 * now.step * self.lambda_0 * self.domain.diameter
            if norm > most:
                raise ValueError(
                    f"its dual variable has the norm {norm:.3g}, at most {most:.3g} is possible"
                )
        return _Reply(client, [], np.array(point, now.x_bar.dtype), dual, fresh)

    def _step(self, now: _Round, used: list[_Reply]) -> None:
        for k, eta in enumerate(now.etas):
            server_step(now.x_bar, [reply.atoms[k] for reply in used], eta)

    # --- all clients answer: their mean is enough -------------------------------------

    def _move(self, now: _Round, used: list[_Reply]) -> None:
        """Move x_bar, the mean of the members' points; start to keep copies once all
        clients were asked for their state.
        """
        states = [reply for reply in used if reply.point is not None]
        if states:
            for reply in states:
                self._remember(reply.client, reply.point, reply.dual)
            now.x_bar[...] = self._mean(self.points)
            self.suspects = set(now.ids.values()) - self.points.keys()
            return
        self._step(now, used)
        answered = [reply.client for reply in used]
        changed = bool(self.members) and (
            answered != self.members or any(reply.fresh for reply in used)
        )
        self.members = self.members or answered
        if changed:
            self._missed(now, answered)

    def _missed(self, now: _Round, answered: list[ClientId]) -> None:
        """Record the clients whose state is unknown from now on: all clients, if only
        the mean of their points is known.
        """
        if self.points:
            for client in now.asked:
                self._lost[client] = 0 if client in answered else self._lost.get(client, 0) + 1
            self.suspects |= {client for client in now.asked if client not in answered}
        elif self.members and self.variant != "naive-fw":
            log(INFO, "not the same clients answered as before: all are asked for their state once")
            self.suspects = set(now.ids.values())

    # --- otherwise: copies of the clients' states -------------------------------------

    def _track(self, now: _Round, arrays: ArrayRecord) -> ArrayRecord:
        """Keep a copy of every connected client's state and return x_bar as an array
        record; a new client starts at x_bar, with y_i = 0.
        """
        gone = [
            client
            for client in self.points
            if client not in now.ids.values() or self._lost.get(client, 0) >= PATIENCE
        ]
        for client in gone:
            log(INFO, "client %s does not count in the mean until it answers", client)
            del self.points[client]
            self.duals.pop(client, None)
            self.suspects.add(client)
        for client in now.ids.values():
            if client not in self.points and client not in self.suspects:
                self._remember(client, now.x_bar.copy(), None)
                self._new.add(client)
        if not gone or not self.points:
            return arrays
        now.x_bar[...] = self._mean(self.points)
        return self.model(now.x_bar)

    def _remember(self, client: ClientId, point: Array | None, dual: Array | None) -> None:
        assert point is not None
        self.points[client] = point
        if self.variant == "fedfw-plus":
            self.duals[client] = np.zeros_like(point) if dual is None else dual

    def _dual_mean(self, now: _Round) -> Array:
        """Return the mean of the dual variables after this round's dual steps. A client
        that answers for the first time starts at x_bar, so that its step is 0.
        """
        moving = [self.points[c] for c in now.asked if c in self.points and c not in self._new]
        steps = sum((point - now.x_bar for point in moving), np.zeros_like(now.x_bar))
        return np.asarray(
            self._mean(self.duals) + (now.dual_step / max(1, len(self.duals))) * steps,
            now.x_bar.dtype,
        )

    def _mean(self, states: dict[ClientId, Array]) -> Array:
        total = np.zeros(self.domain.shape)
        for state in states.values():
            total += state
        return total / max(1, len(states))

    def _replay(self, now: _Round, used: list[_Reply]) -> None:
        """Apply the clients' steps to the copies of their states; x_bar stays the mean
        over all clients, absent ones too.
        """
        sent = now.x_bar.copy()
        for reply in used:
            if reply.point is None and not reply.fresh:
                continue
            point = sent.copy() if reply.point is None else reply.point
            if reply.client in self.points:
                now.x_bar += (point - self.points[reply.client]) / len(self.points)
            else:
                now.x_bar += (point - now.x_bar) / (len(self.points) + 1)
            self._remember(reply.client, point, reply.dual)
        moving = [reply for reply in used if reply.point is None]
        for reply in moving:
            if reply.client in self.duals:
                dual_step(self.duals[reply.client], self.points[reply.client], sent, now.dual_step)
        for k, eta in enumerate(now.etas):
            points = [self.points[reply.client] for reply in moving]
            server_step_partial(
                now.x_bar, points, [reply.atoms[k] for reply in moving], eta, len(self.points)
            )
        self.suspects -= {reply.client for reply in used}
        self._new -= {reply.client for reply in used}
        self._missed(now, [reply.client for reply in used])

    # --- state ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the members, the clients with unknown state, and the copies of the
        states.
        """
        state = super().state_dict()
        for name, clients in (
            ("members", self.members),
            ("suspects", list(self.suspects)),
            ("clients", list(self.points)),
            ("new", list(self._new)),
        ):
            if clients:
                state[name] = pack_ids(clients)
        if self.points:
            state["points"] = np.stack(list(self.points.values()))
            state["lost"] = np.array([self._lost.get(client, 0) for client in self.points])
        return state | ({"duals": np.stack(list(self.duals.values()))} if self.duals else {})

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if self.preparation:
            super().load_state_dict(state)
        members, suspects, clients, new = (
            unpack_ids(state[k]) if k in state else []
            for k in ("members", "suspects", "clients", "new")
        )
        self.members, self.suspects, self._new = members, set(suspects), set(new)
        self.points = {
            client: point.copy()
            for client, point in zip(clients, state.get("points", []), strict=True)
        }
        if self.points and self.variant == "fedfw-plus" and "duals" not in state:
            raise ValueError(
                "the checkpoint holds no dual variables: an older version wrote it; start a new run"
            )
        self.duals = (
            {client: dual.copy() for client, dual in zip(clients, state["duals"], strict=True)}
            if "duals" in state
            else {}
        )
        self._lost = {
            client: int(lost) for client, lost in zip(clients, state.get("lost", []), strict=False)
        }
