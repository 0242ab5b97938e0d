"""FedTGP: FedProto whose server trains the prototypes, so that those of different
classes lie apart.

Source: Zhang, Liu, Hua, Cao, "FedTGP: Trainable Global Prototypes with
Adaptive-Margin-Enhanced Contrastive Learning for Data and Model Heterogeneity in
Federated Learning", AAAI 2024, arXiv 2401.03230, Algorithm 1. Clients are FedProto's.
With the clients' class means P_ic and a net F of the classes, the server minimises over
F, by SGD,

    - log softmax_c( -||P_ic - F(c)|| - delta ),   the others without delta,
    delta = min(largest distance between class means of the P_ic, margin)

and sends P_c = F(c). F, an embedding and two linear layers, goes on from round to
round (``algorithms.personal.prototypes``).

Contract: FedProto's.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedapps.algorithms.common.options import option
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import arrays_of, to_record
from fedapps.strategies.fedavg import FedAvgArguments
from fedapps.strategies.fedproto import FedProto, FedProtoOptions


@dataclass(frozen=True)
class FedTGPOptions(FedProtoOptions):
    """Options of FedTGP."""

    margin: float = option(100.0, "largest margin between prototypes", low=0)
    epochs: int = option(100, "epochs over the clients' prototypes in each round", low=1)
    rate: float = option(0.01, "the server's learning rate", low=0, open_low=True)


class FedTGP(FedProto):
    """FedTGP strategy. ``num_classes``: C; ``size``: D; ``seed``: of the net and the
    order of its batches.
    """

    def __init__(
        self,
        num_classes: int,
        size: int,
        options: FedTGPOptions | None = None,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        tgp = options or FedTGPOptions()
        super().__init__(num_classes, size, tgp, **kwargs)
        self.tgp, self.seed = tgp, seed
        self.theta: dict[str, NDArray[Any]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Each client's prototypes are used."""
        return replace(super().capabilities, aggregation="single replies")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Train the prototypes on those of the replies."""
        from fedapps.algorithms.personal.prototypes import prototype_net, trained_prototypes

        valid = self.answered(replies)
        seen, labels = prototypes_of(valid)
        if not len(seen):
            return None, None
        self.theta, prototypes = trained_prototypes(
            self.theta,
            prototype_net(self.num_classes, self.size, derived_seed(self.seed, "prototypes")),
            seen,
            labels,
            self.tgp.margin,
            (self.tgp.epochs, self.tgp.rate),
            generator(self.seed, "prototypes", server_round),
        )
        shares = np.bincount(labels, minlength=self.num_classes) > 0
        known = (shares | (read(self.sent["shares"]) > 0)).astype(np.float32)
        metrics = self.train_metrics_aggr_fn(
            [reply.content for reply in valid], self.weighted_by_key
        )
        return to_record(["sums", "shares"], [prototypes * known[:, None], known]), metrics

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the net of the prototypes."""
        return self.theta

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.theta = dict(state)


def prototypes_of(replies: Iterable[Message]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the prototypes (n, D) of all replies, and their classes (n,)."""
    rows, labels = [], []
    for reply in replies:
        (record,) = arrays_of(reply.content)
        shares = read(record["shares"])
        known = shares > 0
        rows.append(read(record["sums"])[known] / shares[known, None])
        labels.append(np.flatnonzero(known))
    return np.concatenate([*rows]) if rows else np.empty((0, 0), np.float32), np.concatenate(
        labels or [np.empty(0, np.int64)]
    )
