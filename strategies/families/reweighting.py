"""Base of methods that decide the clients' weights and delegate everything else to a
wrapped strategy.

    AAggFFD(FedAdam())
        TERM(FedProx(FedProxOptions(mu=0.1)))        AAggFFS(YourFedAvg())

Weights, the server's step and the clients' loss are independent of each other. A weight
rule decides the weights. The wrapped strategy samples, sends, averages and steps as
usual, but in the replies passed to it the decided weight replaces ``num-examples``, and
a rule may make updates shorter or longer. Metrics are averaged with the original
weights.

Weights are relative to a prior, uniform or the clients' training samples. Rules start
at the prior, and with their neutral setting they equal the wrapped strategy with
uniform weights or with its own. A cap bounds the weights of a round, and those of all
clients, by a multiple of the prior. Weights belong to client ids and are kept for
clients that are not sampled or not connected: a client that joins starts at the mean of
the others, in weight and in samples until it has replied; one that has been away for
more than ``forget_after`` rounds in a row is forgotten, and the others keep their
proportions.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III, section 6.4
("plug and play").

Contract: that of the wrapped strategy; in addition, for rules that use losses, the
reply holds the metric ``loss-before``, the mean training loss of the model as it was
received. The training configuration requests it with ``loss-before`` = true. A client
whose loss is negative or not finite is skipped; one far above the loss that models
start from is cut (:func:`fedapps.algorithms.fairness.responses.cut`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import WARNING
from statistics import median_low
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_range
from fedapps.algorithms.contract.sent import Asked
from fedapps.algorithms.fairness.responses import cut
from fedapps.algorithms.fairness.rule import FairOptions, bounded, normalise
from fedapps.strategies.base.capabilities import Capabilities, declarer, require_declaration
from fedapps.strategies.base.messages import (
    LOSS_BEFORE,
    arrays_of,
    innermost,
    metrics_of,
    valid_losses,
    weight_key,
    with_weight,
)
from fedapps.strategies.base.named_grid import ClientId
from fedapps.strategies.base.relative_bounds import HARDENED
from fedapps.strategies.base.updates import each_update, moved, updates
from fedapps.strategies.families.weight_memory import FORGET_AFTER, WeightMemory

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

#: Weight times update of a client that is not trusted, as a multiple of the prior times
#: the round's median: of ten equal clients, one that pulls the other way takes a fifth
#: of what they move from the nine others.
MOST_MOVED = 2.0


@dataclass(frozen=True)
class Replies:
    """The m replies of a round, as a weight rule sees them.

    ``places`` (m,): positions of the clients. ``losses`` (m,): of the model that was
    sent; empty if the rule asks for none. ``prior`` (m,): sums to 1. ``sent``,
    ``models``: of the round; no models if weights are decided before these are there.
    """

    places: Places
    losses: Floats
    prior: Floats
    sent: ArrayRecord
    models: Sequence[ArrayRecord]

    def updates(self) -> Floats:
        """Return the changes of the learned arrays as rows (m, d)."""
        return updates(self.sent, self.models)

    @cached_property
    def norms(self) -> Floats:
        """The norms (m,) of these rows, of which one at a time is in memory."""
        return np.array([np.linalg.norm(row) for row in each_update(self.sent, self.models)])


@dataclass(frozen=True)
class Decision:
    """The weights (m,) of a round, which sum to 1; metrics to report; factors (m,) of
    the updates, ``None`` for 1.
    """

    weights: Floats
    facts: dict[str, float] = field(default_factory=dict)
    factors: Floats | None = None


#: Of rules that decide from losses alone: secure sums let them do so before the sum.
BY_LOSSES = Capabilities("model", "single replies", subset=True, losses=True)


class Reweighting(WeightMemory):
    """Wrapper of a ``strategy`` that averages by weight; raises ``ValueError`` if it is
    not declared to do so.

    ``prior``, ``cap``: as in :class:`fedapps.algorithms.fairness.rule.FairOptions`.
    ``forget_after``: rounds in a row that a client may be disconnected before its
    weight is forgotten.
    """

    #: The weights of a second wrapper around this one would be overwritten.
    capabilities = Capabilities(replies="model", aggregation="single replies", subset=True)
    sets_weights = True

    def __init__(
        self,
        strategy: Strategy,
        *,
        prior: str = "uniform",
        cap: float = 0.0,
        forget_after: int = FORGET_AFTER,
    ) -> None:
        check_range("forget-after", forget_after, 0)
        name = type(self).__name__
        if require_declaration(strategy, name).aggregation != "weighted average":
            raise ValueError(
                f"{name} decides the weights of an average, but {declarer(strategy)} does not "
                "average by the weights of the "
                "replies: wrap one that does (FedAvg with weights = 'samples', FedProx, FedAdam, "
                "SuPerFed, ...)"
            )
        options = FairOptions(prior=prior, cap=cap)
        super().__init__(strategy, options.prior, forget_after)
        self.cap = options.cap
        self.hardened = False
        #: The weights of the last round by client, summing to 1.
        self.last_weights: dict[ClientId, float] = {}
        self._sent = ArrayRecord()
        self._ahead: tuple[dict[int, float], dict[str, float]] | None = None

    # --- hooks ------------------------------------------------------------------------

    def harden(self) -> None:
        """Cap the weights, if the options do not, and what a client moves the mean: no
        bound on a loss keeps a client that always names the largest from the weight of
        the worst one.
        """
        self.hardened, self.cap = True, self.cap or HARDENED

    def check_sample(self, sampled: int, count: int, server_round: int) -> None:
        """Called when ``sampled`` of ``count`` connected clients take part in a round;
        the default does nothing.
        """
        return

    @abstractmethod
    def decide(self, replies: Replies) -> Decision:
        """Return the weights of a round's replies."""

    # --- the Strategy interface -------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy sample and send; request ``loss-before`` from the
        clients if the rule needs it.
        """
        self.enter_loop(arrays, grid)
        self._ahead = None
        if self.asks_losses:
            config.update(Asked(loss_before=True).to_config())
        self._meet(grid, server_round)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        nodes = {message.metadata.dst_node_id for message in messages}
        if nodes - self._names.keys():  # connected since
            self._meet(grid, server_round)
        if messages:
            self._sent = arrays_of(messages[0].content)[0]
            self.check_sample(len(nodes), len(self._names), server_round)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decide the weights from this round's replies and let the wrapped strategy
        aggregate with them.
        """
        heard = self.answered(replies)
        used, decision = self._weighed(heard) if self._ahead else self._decided(heard)
        if not used:
            self.last_weights = {}
            return None, None
        contents, key = [reply.content for reply in used], weight_key(self.strategy)
        models = (
            [None] * len(used)
            if decision.factors is None
            else self._scaled(contents, decision.factors)
        )
        weighted = [
            with_weight(reply, key, w, model)
            for reply, w, model in zip(used, decision.weights, models, strict=True)
        ]
        with metrics_as_replied(self.strategy, contents):
            arrays, metrics = self.strategy.aggregate_train(server_round, weighted)
        return arrays, MetricRecord(
            {**(metrics or {}), **decision.facts, "weight-max": float(decision.weights.max())}
        )

    @property
    def weighing_metrics(self) -> tuple[str, ...]:
        """The metrics of single clients from which :meth:`weigh` decides."""
        counts = (weight_key(self.strategy),) if self.prior == "samples" else ()
        return (LOSS_BEFORE, *counts)

    def weigh(self, replies: Sequence[Message], most: float) -> dict[int, float]:
        """Decide the weights of a round by node, none above ``most``, from replies that
        hold no models yet. ``aggregate_train`` takes these weights, renormalised over
        the clients that are left by then.
        """
        used, decision = self._decided(replies)
        if not used:
            return {}
        weights = decision.weights
        if (largest := float(weights.max())) > most:
            log(WARNING, "the largest weight of a client, %.3g, counts as %.3g", largest, most)
            weights = bounded(weights, np.full(len(used), most))
        nodes = [reply.metadata.src_node_id for reply in used]
        self._ahead = dict(zip(nodes, weights.tolist(), strict=True)), decision.facts
        return self._ahead[0]

    def _weighed(self, answered: Sequence[Message]) -> tuple[list[Message], Decision]:
        """Return the replies with the weights that :meth:`weigh` has decided."""
        ahead, facts = self._ahead or ({}, {})
        nodes = [reply.metadata.src_node_id for reply in answered]
        weights = normalise(np.array([ahead[node] for node in nodes]))
        names = [self._names[node] for node in nodes]
        self.last_weights = dict(zip(names, weights.tolist(), strict=True))
        return list(answered), Decision(weights, facts)

    def _decided(self, answered: Sequence[Message]) -> tuple[list[Message], Decision]:
        """Decide the weights; return the replies in use, by position, with them."""
        named = [(self._names[reply.metadata.src_node_id], reply) for reply in answered]
        rows = (
            valid_losses(named)
            if self.asks_losses
            else [(client, reply, np.nan) for client, reply in named]
        )
        if not rows:
            return [], Decision(np.zeros(0))
        unsorted = self.clients.at(client for client, _, _ in rows)
        order = np.argsort(unsorted, kind="stable")
        valid, places = [rows[place] for place in order], unsorted[order]
        used = [row[1] for row in valid]
        contents, key = [reply.content for reply in used], weight_key(self.strategy)
        self.samples[places] = [float(metrics_of(content).get(key, np.nan)) for content in contents]
        if self.rule is not None and self.prior == "samples":
            self.rule.set_prior(self._prior())
        prior = (
            normalise(self.samples[places])
            if self.prior == "samples"
            else np.full(len(places), 1 / len(places))
        )
        losses = self._cut(valid) if self.asks_losses else np.zeros(0)
        models = [record for content in contents for record in arrays_of(content)[:1]]
        heard = Replies(places, losses, prior, self._sent, models)
        decision = self.decide(heard)
        weights = self.limited(decision.weights, heard, decision.factors)
        self.last_weights = {
            client: float(w) for (client, _, _), w in zip(valid, weights, strict=True)
        }
        return used, replace(decision, weights=weights)

    # --- parts ------------------------------------------------------------------------

    def _cut(self, valid: list[tuple[ClientId, Message, float]]) -> Floats:
        """Return the losses (m,), none far above the scale of the run's losses."""
        losses, self.loss_scale = cut([loss for _, _, loss in valid], self.loss_scale)
        for (client, _, loss), used in zip(valid, losses, strict=True):
            if loss > used:
                log(WARNING, "client %s: its loss %.3g counts as %.3g", client, loss, used)
        return losses

    def limited(self, weights: Floats, replies: Replies, factors: Floats | None = None) -> Floats:
        """Return the weights (m,) within the cap. Hardened, a weight times the length
        of the client's update (times its factor) is at most ``MOST_MOVED`` times the
        prior times the median length: a client with the cap's weight and the longest
        update allowed would outweigh all others.
        """
        if not self.cap:
            return weights
        limits = self.cap * replies.prior
        if self.hardened and replies.models:
            lengths = replies.norms * (1.0 if factors is None else factors)
            if usual := median_low(lengths):
                limits *= np.minimum(1, MOST_MOVED * usual / np.maximum(self.cap * lengths, usual))
        return bounded(weights, limits / min(1.0, limits.sum()))

    def _scaled(self, contents: list[RecordDict], factors: Floats) -> list[ArrayRecord]:
        """Return the models with learned arrays ``sent + factor * update``, ``factors``
        (m,).
        """
        models = [arrays_of(content)[0] for content in contents]
        return [
            moved(self._sent, factor * updates(self._sent, [model])[0], model)
            for factor, model in zip(factors, models, strict=True)
        ]


@contextmanager
def metrics_as_replied(strategy: Strategy, contents: list[RecordDict]) -> Iterator[None]:
    """Let metrics be averaged by the weights in ``contents``, the replies as they came:
    decided weights apply to the models only, and a mean loss remains that over samples.
    """
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
