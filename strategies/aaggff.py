"""AAggFF: client weights as an online portfolio, so that clients with larger losses get
larger weights.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III: responses
(3.8); Algorithm 3.1 (AAggFF-S: full participation, online Newton step (3.7)); Algorithm
3.2 (AAggFF-D: samples of many clients, doubly robust responses (3.10), closed form
(3.12)). The weights of a round's replies are decided from the losses of the same round.
The weight rules are in ``algorithms/fairness/portfolio.py``.

Contract: that of the wrapped strategy; in addition the reply holds the metric
``loss-before``, the mean training loss of the model as it was received, which the
training configuration requests by ``loss-before`` = true. Clients keep no state for it.
"""

from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType

import numpy as np
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import option
from fedapps.algorithms.fairness.portfolio import RIDGES, STEPS, LinearisedFTRL, OnlineNewtonStep
from fedapps.algorithms.fairness.responses import CDFS, check_bounds, decision_loss, respond
from fedapps.algorithms.fairness.rule import FairOptions, normalise
from fedapps.strategies.families.reweighting import BY_LOSSES, Decision, Replies, Reweighting


@dataclass(frozen=True)
class AAggFFOptions(FairOptions):
    """Options of AAggFF."""

    PRINTED = MappingProxyType({"step": "paper", "cap": 0.0})

    cdf: str = option(
        "normal", "distribution function by which losses become responses", choices=CDFS
    )
    c1: float = option(0.0, "smallest response", low=0)
    c2: float = option(
        0.0, "largest response; 0: 1/K (aaggff-s), the share of sampled clients (aaggff-d)", low=0
    )
    ridge: str = option(
        "paper",
        "regulariser of aaggff-s: (3.7), or the milder form of the reference implementation",
        choices=RIDGES,
    )
    forget_after: int = option(
        100, "rounds in a row that a client may be away before its weight is forgotten", low=0
    )
    _: KW_ONLY
    rate: float = option(1.0, "factor on the step of the weights; 0: they stay at the prior", low=0)
    step: str = option(
        "sampled",
        "step of aaggff-d: adapted to sampled clients, or the paper's (3.12)",
        choices=STEPS,
    )
    cap: float = option(
        3.0, "largest weight as a multiple of the prior, at least 1; 0: no limit", low=0
    )

    def check(self) -> None:
        """Check the cap, and the range of the responses if ``c2`` is given."""
        super().check()
        if self.c2:
            check_bounds(self.c1, self.c2)


class AAggFF(Reweighting):
    """Base of AAggFF-S and AAggFF-D."""

    capabilities = BY_LOSSES

    def __init__(self, strategy: Strategy, options: AAggFFOptions | None = None) -> None:
        self.options = options or AAggFFOptions()
        super().__init__(
            strategy,
            prior=self.options.prior,
            cap=self.options.cap,
            forget_after=self.options.forget_after,
        )


class AAggFFS(AAggFF):
    """AAggFF-S around ``strategy``: every connected client takes part in every round.

    A client that fails in a round has no weight in it; its response is imputed by the
    mean of the others, as (3.10) does for an unobserved response.
    """

    rule: OnlineNewtonStep | None

    def new_rule(self, count: int) -> OnlineNewtonStep:
        """Return an online Newton step."""
        o = self.options
        return OnlineNewtonStep(count, o.c1, o.c2 or None, o.ridge, rate=o.rate, cap=o.cap)

    def check_sample(self, sampled: int, count: int, server_round: int) -> None:
        """Raise ``ValueError`` unless all clients take part."""
        if sampled < count:
            raise ValueError(
                f"AAggFF-S needs every client in every round, but round {server_round} samples "
                f"{sampled} of {count}: set clients-per-round = 0 (in Flower: fraction_train = 1), "
                "or use AAggFF-D"
            )

    def decide(self, replies: Replies) -> Decision:
        """Return the next p, renormalised over the clients that replied."""
        assert self.rule is not None
        places, losses, before = replies.places, replies.losses, self.rule.p
        heard = respond(losses, self.options.cdf, self.rule.low, self.rule.high)
        responses = np.full(self.rule.count, heard.mean())
        responses[places] = heard
        p = self.rule.decide(np.arange(self.rule.count), responses)
        facts = {
            "decision-loss": decision_loss(before, responses),
            "objective": float(normalise(before[places]) @ losses),
        }
        return Decision(normalise(p[places]), facts)


class AAggFFD(AAggFF):
    """AAggFF-D around ``strategy``: clients are sampled; C is the share of the
    connected clients that replied in a round.

    C is the probability that a response is observed. The share of sampled clients would
    bias (3.10) when replies are lost.
    """

    rule: LinearisedFTRL | None
    _connected, _asked = 1, 1.0

    def new_rule(self, count: int) -> LinearisedFTRL:
        """Return linearised FTRL; C is set before every decision."""
        o = self.options
        return LinearisedFTRL(count, 1.0, o.c1, o.c2 or None, step=o.step, rate=o.rate, cap=o.cap)

    def check_sample(self, sampled: int, count: int, server_round: int) -> None:
        """Check the range of the responses if all sampled clients reply."""
        self._connected, self._asked = count, sampled / count
        check_bounds(self.options.c1, self.options.c2 or self._asked)

    def decide(self, replies: Replies) -> Decision:
        """Return the next p, renormalised over the clients that replied.

        Scores of earlier rounds are divided by their own C, so they stay comparable.
        """
        assert self.rule is not None
        places, losses = replies.places, replies.losses
        self.rule.ratio = len(places) / self._connected
        self.rule.high = self.options.c2 or (
            self.rule.ratio if self.rule.ratio > self.options.c1 else self._asked
        )
        before = self.rule.at(places)
        responses = respond(losses, self.options.cdf, self.rule.low, self.rule.high)
        mean = responses.mean()
        # <p, r> with the doubly robust r
        wealth = mean + before @ (responses - mean) / self.rule.ratio
        facts = {
            "decision-loss": decision_loss(1.0, wealth),
            "objective": float(normalise(before) @ losses),
        }
        return Decision(self.rule.decide(places, responses), facts)
