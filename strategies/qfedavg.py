"""q-FedAvg: clients are weighted by their loss to the power q, and the step is
shortened by a Lipschitz estimate.

Source: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning",
ICLR 2020, arXiv 1905.10497, Algorithm 2. With F_k the loss of the model that was sent
and L one over the local learning rate:

    Delta_k = L (w - w_k)  client k's pseudo-gradient
    h_k = q F_k^(q-1) |Delta_k|^2 + L F_k^q  its share of the Lipschitz constant of
                                             (1/(q+1)) sum F^(q+1)
    w  <- w - sum_k F_k^q Delta_k / sum_k h_k

The method has two parts: the weights p ~ F^q, and a step of ``1 / (1 + q L sum_k p_k
|w_k - w|^2 / F_k)`` times the mean update. The wrapped strategy averages updates that
are shortened by this factor. ``step = "average"`` does not shorten them, for strategies
with their own step (FedAdam). With ``prior`` "samples" F_k counts n_k times. q = 0 is
the average by the prior. L follows the local learning rate and its decay, which the
training configuration holds.

Differences from Flower's QFedAvg, which has the same formula: it keeps the first
round's L while the clients' learning rate decays, computes the norm over counters and
running statistics too, and reads ``train_loss``, which does not specify the model it
refers to.

Contract: that of the wrapped strategy and ``loss-before`` (see
``strategies/families/reweighting.py``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import option
from fedapps.algorithms.common.schedule import local_rate
from fedapps.algorithms.fairness.rule import FairOptions
from fedapps.algorithms.fairness.weight_rules import LEAST_LOSS, lipschitz_step, powers
from fedapps.strategies.base.relative_bounds import HARDENED
from fedapps.strategies.families.reweighting import Decision, Replies, Reweighting


@dataclass(frozen=True)
class QFedAvgOptions(FairOptions):
    """Options of q-FedAvg."""

    q: float = option(0.1, "clients are weighted by their loss to this power; 0: the prior", low=0)
    lipschitz: float = option(0.0, "L; 0: one over the learning rate of the round", low=0)
    step: str = option(
        "lipschitz",
        "shorten the mean update by the estimate, or take all of it",
        choices=["lipschitz", "average"],
    )


class QFedAvg(Reweighting):
    """q-FedAvg around ``strategy``."""

    def __init__(self, strategy: Strategy, options: QFedAvgOptions | None = None) -> None:
        self.options = options or QFedAvgOptions()
        super().__init__(strategy, prior=self.options.prior, cap=self.options.cap)
        self._lipschitz = 0.0

    @property
    def excluded_optimizers(self) -> dict[str, str]:
        """The clients' optimisers for which the estimate does not hold, and why."""
        if self.options.step == "average" or self.options.lipschitz or not self.options.q:
            return {}
        return dict.fromkeys(
            ("adam", "adamw"),
            "q-FedAvg takes L from the learning rate, as a step of SGD has it: choose sgd, "
            'q-fedavg.step = "average", or q-fedavg.lipschitz',
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the learning rate; raise ``ValueError`` if it is needed and neither
        options nor configuration give one.
        """
        if why := self.excluded_optimizers.get(str(config.get("optimizer"))):
            raise ValueError(f"optimizer = {config['optimizer']!r}: {why}")
        if self.options.step == "lipschitz":
            rate = local_rate(config, server_round)
            if not self.options.lipschitz and not rate:
                raise ValueError(
                    "q-FedAvg needs the clients' learning rate: put learning-rate (or lr) into "
                    "train_config, or set lipschitz = 1 / learning-rate"
                )
            self._lipschitz = self.options.lipschitz or 1 / rate
        return super().configure_train(server_round, arrays, config, grid)

    def decide(self, replies: Replies) -> Decision:
        """Return the weights ``prior F^q`` and the step; the objective is computed with
        them.
        """
        weights = powers(replies.losses, self.options.q, replies.prior)
        facts = {"objective": float(weights @ replies.losses)}
        if self.options.step == "average" or self.options.q == 0:
            return Decision(weights, facts)
        shares, squares = self.limited(weights, replies), replies.norms**2
        if self.hardened:  # or a client whose loss is said to be almost 0 stops the run
            usual = median_low(squares / np.maximum(replies.losses, LEAST_LOSS))
            squares = np.minimum(squares, HARDENED * usual * replies.losses)
        step = lipschitz_step(shares, replies.losses, squares, self.options.q, self._lipschitz)
        return Decision(weights, {**facts, "step": step}, np.full(len(weights), step))
