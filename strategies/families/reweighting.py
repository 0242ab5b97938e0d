"""Base of methods that decide the clients' weights and delegate everything else to a wrapped strategy.

    AAggFFD(FedAdam())        TERM(FedProx(FedProxOptions(mu=0.1)))        AAggFFS(YourFedAvg())

The wrapped strategy samples, sends and averages as usual, but in the replies passed to it the decided weight replaces
``num-examples``. Metrics are averaged with the original weights. Weights belong to client ids and are kept for clients that are not
sampled or not connected: a client that joins starts at the mean of the others; one that has been away for more than ``forget_after``
rounds in a row is forgotten, and the others keep their proportions.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024,
arXiv 2408.00050, Chapter III, section 6.4 ("plug and play").

Contract: that of the wrapped strategy; in addition the reply holds the metric ``loss-before``, the mean training loss of the model as
it was received. The training configuration requests it with ``loss-before`` = true. A client whose loss is negative or not finite is
left out.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from algorithms.common.checks import check_range
from algorithms.fairness.portfolio import WeightRule
from strategies.base.capabilities import Capabilities, load_state, require_declaration, state_of
from strategies.base.client_grid import ClientId, clients_of, pack_ids, unpack_ids
from strategies.base.messages import LOSS_BEFORE, innermost, valid_losses
from strategies.base.weights import weight_key, with_weight
from strategies.base.wrapper import Wrapper

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
#: Rounds in a row that a client may be away before its weight is forgotten.
FORGET_AFTER = 100


class Reweighting(Wrapper):
    """Wrapper of a ``strategy`` that averages by weight; raises ``ValueError`` if it is not declared to do so.

    ``forget_after``: rounds in a row that a client may be away, not connected, before its weight is forgotten.
    """

    #: The weights of a second wrapper around this one would be overwritten.
    capabilities = Capabilities(replies="model", aggregation="single replies", subset=True)

    def __init__(self, strategy: Strategy, forget_after: int = FORGET_AFTER) -> None:
        check_range("forget-after", forget_after, 0)
        name = type(self).__name__
        if require_declaration(strategy, name).aggregation != "weighted average":
            raise ValueError(
                f"{name} decides the weights of an average, but {type(innermost(strategy)).__name__} does not average by the "
                f"weights of the replies: wrap one that does (FedAvg with weights = 'samples', FedProx, FedAdam, ...)"
            )
        self.strategy = strategy
        self.forget_after = forget_after
        #: The weights of the last round by client, summing to 1.
        self.last_weights: dict[ClientId, float] = {}
        #: Client ids by position: the weight rule identifies clients by position.
        self.clients: list[ClientId] = []
        self.rule: WeightRule | None = None
        self._away: dict[ClientId, int] = {}  # rounds in a row without a connection
        self._met = 0  # the last round in which these were counted
        self._names: dict[int, ClientId] = {}

    # --- hooks ---------------------------------------------------------------------------------------------------

    def new_rule(self, count: int) -> WeightRule | None:
        """Return the weight rule for ``count`` clients; ``None`` if the method keeps no state between rounds."""
        return None

    def check_sample(self, sampled: int, count: int, server_round: int) -> None:
        """Called when ``sampled`` of ``count`` connected clients take part in a round; the default does nothing."""
        return

    @abstractmethod
    def decide(self, places: Places, losses: Floats) -> tuple[Floats, dict[str, float]]:
        """Return the weights (m,), summing to 1, of the clients at ``places`` (m,) with ``losses`` (m,), and metrics to report."""

    # --- the Strategy interface ----------------------------------------------------------------------------------

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Let the wrapped strategy sample and send; request ``loss-before`` from the clients."""
        config[LOSS_BEFORE] = True
        self._meet(grid, server_round)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        nodes = {message.metadata.dst_node_id for message in messages}
        if nodes - self._names.keys():  # connected since
            self._meet(grid, server_round)
        if nodes:
            self.check_sample(len(nodes), len(self._names), server_round)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decide the weights from this round's losses and let the wrapped strategy aggregate with them."""
        heard = list(replies)
        failed = [reply for reply in heard if reply.has_error()]
        at = {client: place for place, client in enumerate(self.clients)}
        named = [(self._names[reply.metadata.src_node_id], reply) for reply in heard if not reply.has_error()]
        valid = sorted(((at[client], reply, loss) for client, reply, loss in valid_losses(named)), key=lambda row: row[0])
        if not valid:
            self.last_weights = {}
            return None, None
        places, losses = np.array([row[0] for row in valid]), np.array([row[2] for row in valid])
        weights, facts = self.decide(places, losses)
        self.last_weights = {self.clients[place]: float(w) for place, w in zip(places, weights, strict=True)}
        whole = [reply for _, reply, _ in valid]
        key = weight_key(self.strategy)
        weighted = [with_weight(reply, key, w) for reply, w in zip(whole, weights, strict=True)]
        with _metrics_as_replied(self.strategy, [reply.content for reply in whole]):
            arrays, metrics = self.strategy.aggregate_train(server_round, [*weighted, *failed])
        return arrays, MetricRecord({**(metrics or {}), **facts, "weight-max": float(weights.max())})

    # --- saved state ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the client ids by position, the state of the weight rule and that of the wrapped strategy, if it has one."""
        away = np.array([self._away.get(client, 0) for client in self.clients], np.int64)
        state: dict[str, NDArray[Any]] = {"clients": pack_ids(self.clients), "away": away}
        if self.rule is not None:
            state |= {f"maker.{name}": value for name, value in self.rule.state_dict().items()}
        return state | {f"strategy.{name}": value for name, value in state_of(self.strategy).items()}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.clients = unpack_ids(state["clients"])
        self._away = dict(zip(self.clients, state.get("away", np.zeros(len(self.clients), np.int64)).tolist(), strict=True))
        self.rule = self.new_rule(len(self.clients)) if self.clients else None
        if self.rule is not None:
            self.rule.load_state_dict(_part(state, "maker."))
        load_state(self.strategy, _part(state, "strategy."))

    # --- parts ---------------------------------------------------------------------------------------------------

    def _meet(self, grid: Grid, server_round: int) -> None:
        """Give new clients a position and forget those that have been away for too long."""
        self._names = clients_of(grid)
        present, known = set(self._names.values()), set(self.clients)
        if server_round != self._met:
            self._met = server_round
            self._away = {client: 0 if client in present else self._away.get(client, 0) + 1 for client in self.clients}
        gone = [place for place, client in enumerate(self.clients) if self._away.get(client, 0) > self.forget_after]
        if len(gone) == len(self.clients):  # the first round, or no known client is left
            self.clients, self._away = list(self._names.values()), {}
            self.rule = self.new_rule(len(present)) if present else None
            return
        new = [client for client in self._names.values() if client not in known]
        if self.rule is not None and gone:
            self.rule.drop(np.array(gone))
        if self.rule is not None and new:
            self.rule.add(len(new))
        if gone or new:
            self.clients = [client for place, client in enumerate(self.clients) if place not in set(gone)] + new


@contextmanager
def _metrics_as_replied(strategy: Strategy, contents: list[RecordDict]) -> Iterator[None]:
    # The decided weights apply to the models only: a mean loss remains the mean over samples.
    base: Any = innermost(strategy)
    average = getattr(base, "train_metrics_aggr_fn", None)
    if average is None:
        yield
        return
    base.train_metrics_aggr_fn = lambda _, key: average(contents, key)
    try:
        yield
    finally:
        base.train_metrics_aggr_fn = average


def _part(state: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
