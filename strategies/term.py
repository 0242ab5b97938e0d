"""TERM: tilted empirical risk minimisation. Clients are weighted by exp(lambda F): a
larger lambda emphasises the worst clients.

Source: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021,
arXiv 2007.01162: the objective ``(1/lambda) log mean_k exp(lambda F_k)``, whose
gradient weights client k by its share of ``exp(lambda F_k)``; with ``prior`` "samples"
the mean is weighted by samples. lambda = 0 is the average by the prior. The strategy
keeps no state between rounds.

Contract: that of the wrapped strategy, and the metric ``loss-before`` (see
``strategies/families/reweighting.py``).
"""

from dataclasses import dataclass

from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import option
from fedapps.algorithms.fairness.rule import FairOptions
from fedapps.algorithms.fairness.weight_rules import tilt
from fedapps.strategies.families.reweighting import BY_LOSSES, Decision, Replies, Reweighting


@dataclass(frozen=True)
class TERMOptions(FairOptions):
    """Options of TERM."""

    lambda_: float = option(0.1, "tilt towards the largest loss; 0: the prior", low=0)


class TERM(Reweighting):
    """TERM around ``strategy``."""

    capabilities = BY_LOSSES

    def __init__(self, strategy: Strategy, options: TERMOptions | None = None) -> None:
        self.options = options or TERMOptions()
        super().__init__(strategy, prior=self.options.prior, cap=self.options.cap)

    def decide(self, replies: Replies) -> Decision:
        """Return the tilted weights; the objective is computed with them, since there
        are no earlier weights.
        """
        weights = tilt(replies.losses, self.options.lambda_, replies.prior)
        return Decision(weights, {"objective": float(weights @ replies.losses)})
