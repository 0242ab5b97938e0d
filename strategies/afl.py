"""AFL: minimises the loss of the worst-case mixture of clients, by projected gradient
ascent on the client weights.

Source: Mohri, Sivek, Suresh, "Agnostic Federated Learning", ICML 2019, arXiv
1902.00146, Algorithm 1 (Stochastic-AFL), with local SGD instead of a single gradient
step: ``p <- Pi(p + gamma (F - Fbar))``, F being the mean Fbar of the others for clients
that did not answer (the paper's 0 lets the weight of a client sink while it is away)
and Pi the projection onto the simplex. The weights of a round are the new p of its
clients, renormalised.

Contract: that of the wrapped strategy, and the metric ``loss-before`` (see
``strategies/families/reweighting.py``).
"""

from dataclasses import dataclass

from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import option
from fedapps.algorithms.fairness.rule import FairOptions, normalise
from fedapps.algorithms.fairness.weight_rules import ProjectedAscent
from fedapps.strategies.families.reweighting import BY_LOSSES, Decision, Replies, Reweighting


@dataclass(frozen=True)
class AFLOptions(FairOptions):
    """Options of AFL."""

    gamma: float = option(
        0.1,
        "step of the clients' weights along their losses; 0: the weights stay at the prior",
        low=0,
    )
    forget_after: int = option(
        100, "rounds in a row that a client may be away before its weight is forgotten", low=0
    )


class AFL(Reweighting):
    """AFL around ``strategy``."""

    capabilities = BY_LOSSES

    def __init__(self, strategy: Strategy, options: AFLOptions | None = None) -> None:
        self.options = options or AFLOptions()
        super().__init__(
            strategy,
            prior=self.options.prior,
            cap=self.options.cap,
            forget_after=self.options.forget_after,
        )
        self.rule: ProjectedAscent | None = None

    def new_rule(self, count: int) -> ProjectedAscent:
        """Return projected ascent."""
        return ProjectedAscent(count, self.options.gamma, cap=self.cap)

    def decide(self, replies: Replies) -> Decision:
        """Return the projected weights of the clients that replied."""
        assert self.rule is not None
        before = normalise(self.rule.p[replies.places])
        return Decision(
            self.rule.decide(replies.places, replies.losses),
            {"objective": float(before @ replies.losses)},
        )
