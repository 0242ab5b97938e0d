"""FedDyn's client: local SGD on ``f_i(theta) - <g_i, theta> + (alpha/2) ||theta -
theta^{t-1}||^2``; it keeps g_i between rounds.

alpha is sent as ``feddyn-alpha``. g_i starts at 0; after a round ``g_i <- g_i - alpha
(theta_i - theta^{t-1})``, which is the gradient of f_i at theta_i if the local problem
was solved exactly.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning
Based on Dynamic Regularization", ICLR 2021, arXiv 2111.04263, Algorithm 1.
"""

from typing import Any

import torch

from fedapps.algorithms.common.steps import Tensors
from fedapps.algorithms.contract.sent import FedDynSent
from fedapps.clients.base.training import Config, trainable
from fedapps.clients.fedavg import FedAvgClient
from fedapps.clients.steps.sgd import Penalty


class FedDynClient(FedAvgClient):
    """FedAvg's client with a proximal and a linear term."""

    reads = (FedDynSent,)
    differentiates_surrogate = True
    excluded_optimizers = dict.fromkeys(
        ("adamw",),
        "FedDyn takes the local solution for a zero of the gradient, which decoupled "
        "weight decay moves: choose sgd or adam",
    )

    def train_round(self, config: Config) -> dict[str, Any]:
        """Train theta_i; store the new g_i."""
        start = [p.detach().clone() for p in trainable(self.model).values()]
        metrics = super().train_round(config)
        alpha, linear = FedDynSent.from_config(config).alpha, self.linear(start, config)
        ends = trainable(self.model).values()
        gradients = [
            g - alpha * (p.detach().to(s.device) - s)
            for g, p, s in zip(linear, ends, start, strict=True)
        ]
        # once stored, it would corrupt all later rounds
        if not all(bool(torch.isfinite(g).all()) for g in gradients):
            raise ValueError(
                "local training diverged: lower train.learning-rate or raise feddyn.alpha"
            )
        self.store.save("feddyn", [g.cpu().numpy() for g in gradients], config)
        return metrics

    def penalty(self, tensors: Tensors, config: Config) -> Penalty:
        """Return the gradient of both terms: ``alpha (theta - theta^{t-1}) - g_i``."""
        start, linear = [t.clone() for t in tensors], self.linear(tensors, config)
        return Penalty(FedDynSent.from_config(config).alpha, start, [(linear, -1.0)])

    def linear(self, tensors: Tensors, config: Config) -> Tensors:
        """Return g_i as stored before this round, or zeros."""
        kept = self.stored("feddyn", "g_i", tensors, config, before=True)
        return kept or [torch.zeros_like(t) for t in tensors]
