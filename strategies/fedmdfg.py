"""FedMDFG: a step along which every client's loss falls, as long as it does.

Source: Pan, Wang, Li, Wang, Tang, Zhao, "FedMDFG: Federated Learning with
Multi-Gradient Descent and Fair Guidance", AAAI 2023, DOI 10.1609/aaai.v37i8.26122, as
in its authors' program. Direction: ``algorithms/fairness/common_descent.py``. The step
is the longest of d, d/2, d/4, .. after which no client's loss has risen. If there is
none: the one after which the fewest have, or none at all where half of them have. So
one client that always reports a risen loss does not stop the others.

Differences from the authors' program: the guidance is made of unscaled updates; a loss
must not rise, where theirs must fall by 1e-4 of its derivative, which updates of
several steps do not give; and gradients of clients that are absent are not kept.

Contract. A training message requests ``loss-before``, the mean training loss of the
model as it was received. After training the same clients get an evaluation message with
two models, w and then w + d with names that begin with ``trial.``, and the numbers
``fedmdfg-steps``. The metrics of the reply hold ``trial-losses``, the mean training
losses of w + t d for each of these t.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import Asked, FedMDFGSent, Reads
from fedapps.algorithms.fairness.common_descent import common_descent
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import arrays_of, metrics_of, valid_losses
from fedapps.strategies.base.updates import moved, updates
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

#: Prefix of the arrays of the model after the whole step.
TRIAL = "trial."
#: A loss has risen if it is more than this multiple of what it was: sums are rounded.
RISEN = 1 + 1e-6


@dataclass(frozen=True)
class FedMDFGOptions(Options):
    """Options of FedMDFG."""

    angle: float = option(
        11.25,
        "degrees between the losses and equal ones above which the step brings them closer",
        low=0,
        high=90,
    )
    trials: int = option(
        5, "how many steps are tried, each half of the one before; 0: all of it", low=0, high=30
    )


class FedMDFG(FedAvg):
    """FedMDFG strategy; keyword arguments as in FedAvg."""

    client_half: Reads = (FedMDFGSent,)
    capabilities = Capabilities("model", "single replies")

    def __init__(
        self, options: FedMDFGOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or FedMDFGOptions()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model, and remember whom to ask how it goes on."""
        messages = super().configure_train(server_round, arrays, config, grid)
        self._grid, self._config = grid, dict(config)
        return messages

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Ask for the loss before training."""
        return Asked(loss_before=True).to_config()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step along the common direction; what is not learned is averaged."""
        named = [(reply.metadata.src_node_id, reply) for reply in self.answered(replies)]
        valid = valid_losses(named)
        used = [reply for _, reply, _ in valid]
        average, metrics = super().aggregate_train(server_round, used)
        if average is None:
            return None, None
        models = [arrays_of(reply.content)[0] for reply in used]
        losses = [loss for _, _, loss in valid]
        direction, guided = common_descent(updates(self.sent, models), losses, self.options.angle)
        step, hurt = self._longest(direction, average, [node for node, _, _ in valid])
        facts = {"step": step, "guided": float(guided), "hurt": hurt}
        return moved(self.sent, step * direction, average), MetricRecord(
            {**(metrics or {}), **facts}
        )

    def _longest(
        self, direction: NDArray[np.float64], average: ArrayRecord, nodes: Sequence[Any]
    ) -> tuple[float, int]:
        """Return how much of the direction (d,) is taken, and how many clients' losses
        rise by it, as far as they say so.
        """
        steps = [0.5**k for k in range(self.options.trials)]
        if not steps or not direction.any():
            return float(direction.any()), 0
        start = moved(self.sent, 0 * direction, average)
        end = moved(self.sent, direction, average)
        both = ArrayRecord({**start, **{TRIAL + name: array for name, array in end.items()}})
        question = FedMDFGSent([0.0, *steps]).to_config()
        replies = self.ask(self._grid, both, self._config, question, nodes)
        found = [metrics_of(reply.content).get("trial-losses") for reply in replies]
        curves = [one for one in found if isinstance(one, list) and len(one) == len(steps) + 1]
        if found and not curves:
            raise ValueError(
                "no client reports its losses after a step, in the metric 'trial-losses': use "
                "fedapps.clients.FedMDFGClient, or set trials = 0"
            )
        if not curves:  # all have failed, which is logged
            return 0.0, 0
        before, *after = np.array(curves, np.float64).T
        rises = [int((losses > RISEN * before).sum()) for losses in after]
        best = int(np.argmin(rises))
        return (steps[best], rises[best]) if 2 * rises[best] < len(curves) else (0.0, 0)
