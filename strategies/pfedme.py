"""pFedMe: the server interpolates between its model and the average of the clients'
models; clients keep personal models.

Source: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes",
NeurIPS 2020, arXiv 2006.08848, Algorithm 1.

Contract: FedAvg's. The training configuration holds ``pfedme-lambda`` (0: 15, the
paper's, or 1 / the learning rate if that is less: beyond 2 / the learning rate the
inner steps diverge, beyond 1 / it w overshoots), ``pfedme-inner-steps``,
``pfedme-batches`` and ``pfedme-rate``, that of w (0: the learning rate). The client
keeps its personal theta, is evaluated with it and never sends it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Unpack

from flwr.app import ArrayRecord, Message, MetricRecord

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import PFedMeSent, Reads
from fedapps.strategies.base.updates import moved, updates
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments


@dataclass(frozen=True)
class PFedMeOptions(Options):
    """Options of pFedMe."""

    lambda_: float = option(
        0.0,
        "pull between a client's own model and the one that it sends; 0: 15, or 1 / the learning "
        "rate if less",
        low=0,
    )
    inner_steps: int = option(5, "steps of theta for one of w", low=1)
    rate: float = option(
        0.0, "learning rate of w, at most 1 / lambda; 0: train.learning-rate", low=0
    )
    beta: float = option(
        1.0, "how far the server goes towards the average; 1: all the way", low=0, open_low=True
    )
    batches: str = option(
        "next",
        "inner steps use the next mini-batch each, or the same for all (the paper), at inner-steps "
        "times the cost",
        choices=["next", "same"],
    )


class PFedMe(FedAvg):
    """pFedMe strategy."""

    client_half: Reads = (PFedMeSent,)
    capabilities = FedAvg.capabilities  # a step along the average

    def __init__(
        self, options: PFedMeOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or PFedMeOptions()

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send lambda, the inner steps and the learning rate."""
        return PFedMeSent.of(self.options).to_config()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return ``(1 - beta) w + beta average``, w being the model that was sent."""
        average, metrics = super().aggregate_train(server_round, replies)
        if average is None or self.options.beta == 1:
            return average, metrics
        (change,) = updates(self.sent, [average])
        return moved(self.sent, self.options.beta * change, average), metrics
