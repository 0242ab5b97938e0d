"""FFGB-distill: functional gradient boosting whose ensemble is distilled into one
network after every round.

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, Algorithms 1 and 2 with K = 1 local step, sections 5 and 6,
equation (17). The global function f_t is one network. Client i fits a network h_i to
its functional gradient and sends it: ``g_i = f_t - eta (h_i + mu f_t)``. The server's
function is the mean of the g_i,

    f_{t+1}  ~  (1 - eta mu) f_t - eta mean_i h_i

to which one network, initialised with f_t, is fitted on unlabelled public points. A
round costs one network per client in each direction, whatever the number of rounds.

Contract: a training reply holds the arrays of h_i, with the names and shapes that were
sent, and ``num-examples``. The training configuration holds ``oracle-epochs``,
``oracle-batch-size`` and ``oracle-learning-rate``. Clients are stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from flwr.app import RecordDict

from fedapps.algorithms.boosting.fit_options import DistillOptions
from fedapps.algorithms.common.options import option
from fedapps.algorithms.contract.sent import OracleSent
from fedapps.strategies.families.distilling import Distilled, values_of
from fedapps.strategies.fedavg import FedAvgArguments

if TYPE_CHECKING:
    from torch import Tensor

    from fedapps.algorithms.boosting.regression import Distiller


@dataclass(frozen=True)
class FFGBDistillOptions(DistillOptions):
    """Options of FFGB-distill."""

    step: float = option(
        10.0,
        "eta, step along the mean weak learner; eta times mu is at most 1",
        low=0,
        open_low=True,
    )
    mu: float = option(0.005, "weight of the regulariser (mu/2) ||f||^2", low=0)
    oracle_epochs: int = option(
        100,
        "epochs of a client's fit of its weak learner, with Adam, gradients clipped to norm 5",
        low=1,
    )
    oracle_batch_size: int = option(64, "batch size of a client's fit", low=1)
    oracle_learning_rate: float = option(
        1e-3, "learning rate of a client's fit", low=0, open_low=True
    )

    def steps_a_round(self, samples: float) -> tuple[float, int]:
        """Return the number of steps of a client with ``samples`` samples in a round,
        and their batch size.
        """
        return self.oracle_epochs * max(
            1.0, samples / self.oracle_batch_size
        ), self.oracle_batch_size

    def check(self) -> None:
        """Reject steps that would reverse the sign of the function."""
        if self.step * self.mu > 1:
            raise ValueError(
                f"step = {self.step:g}, mu = {self.mu:g}: their product must be at most 1: lower "
                "one of them"
            )


class FFGBDistill(Distilled):
    """FFGB-distill strategy; all clients of a round have equal weight."""

    def __init__(
        self,
        distiller: "Distiller",
        options: FFGBDistillOptions | None = None,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        self.options = options or FFGBDistillOptions()
        super().__init__(distiller, self.options, seed, **kwargs)

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the options of the weak-learning oracle."""
        o = self.options
        return OracleSent(o.oracle_epochs, o.oracle_batch_size, o.oracle_learning_rate).to_config()

    def teacher(self, contents: Sequence[RecordDict]) -> "Tensor":
        """Return ``(1 - eta mu) f_t - eta mean_i h_i`` at the public points."""
        o = self.options
        own = self.distiller.outputs(values_of(self.sent))
        learners = self.mean_outputs(contents, own * 0)
        return own.mul_(1 - o.step * o.mu).sub_(learners, alpha=o.step)
