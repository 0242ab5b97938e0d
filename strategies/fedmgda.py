"""FedMGDA+: the minimum-norm mixture of the clients' normalised updates; with epsilon =
1, a direction in which no client's loss rises to first order.

Source: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective
Optimization", IEEE Transactions on Network Science and Engineering, 2022, arXiv
2006.11489, Algorithm 1. With the unit updates g_k and the prior p0 (uniform: 1/m):

    lambda = argmin | sum_k lambda_k g_k |^2
        over the simplex, |lambda_k - p0_k| <= epsilon
    w  <- w + eta sum_k lambda_k g_k

epsilon = 0 is the average of the directions by the prior. epsilon = 1 is the
minimum-norm point of MGDA, whose inner product with every g_k is at least its own
squared norm, so that no client loses to first order. For epsilon < 1, which includes
the default, this does not hold: a client whose update opposes the others' can lose. A
client gains nothing by inflating its update, and steps are never longer than eta.

The wrapped strategy averages, with these weights, updates of length eta.

Contract: that of the wrapped strategy. Losses are not needed.
"""

from dataclasses import dataclass

import numpy as np
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.common.options import option
from fedapps.algorithms.fairness.rule import PriorOptions
from fedapps.algorithms.fairness.weight_rules import min_norm_in_box
from fedapps.strategies.families.reweighting import Decision, Replies, Reweighting


@dataclass(frozen=True)
class FedMGDAOptions(PriorOptions):
    """Options of FedMGDA+."""

    epsilon: float = option(
        0.1,
        "how far a client's weight may be from the prior; 1: the minimum-norm point",
        low=0,
        high=1,
    )
    server_learning_rate: float = option(
        1.0,
        "eta, length of every update, and of the step if all clients agree; 0: updates keep their "
        "length",
        low=0,
    )


class FedMGDA(Reweighting):
    """FedMGDA+ around ``strategy``."""

    asks_losses = False

    def __init__(self, strategy: Strategy, options: FedMGDAOptions | None = None) -> None:
        self.options = options or FedMGDAOptions()
        super().__init__(strategy, prior=self.options.prior)

    def decide(self, replies: Replies) -> Decision:
        """Return the weights of the shortest mixture of unit updates, and the factors
        that give updates the length eta.
        """
        moves = replies.updates()
        lengths = np.linalg.norm(moves, axis=1)
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        units = moves * inverse[:, None]
        gram = units @ units.T
        weights = min_norm_in_box(gram, replies.prior, self.options.epsilon)
        eta = self.options.server_learning_rate
        if not eta:
            return Decision(weights)
        return Decision(
            weights,
            {"step-length": eta * float(np.sqrt(max(0.0, weights @ gram @ weights)))},
            eta * inverse,
        )
