"""FedDyn's client: local SGD on ``f_i(theta) - <g_i, theta> + (alpha/2) ||theta -
theta^{t-1}||^2``; it keeps g_i between rounds.

alpha is sent as ``feddyn-alpha``. g_i starts at 0; after a round ``g_i <- g_i - alpha
(theta_i - theta^{t-1})``, which is the gradient of f_i at theta_i if the local problem
was solved exactly.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning
Based on Dynamic Regularization", ICLR 2021, arXiv 2111.04263, Algorithm 1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.common.sent import FedDynSent
from algorithms.common.steps import Terms
from clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from clients.fedavg import FedAvgClient


class FedDynClient(FedAvgClient):
    """FedAvg's client with a proximal and a linear term."""

    reads = (FedDynSent,)
    differentiates_surrogate = True

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return theta_i; store the new g_i."""
        set_arrays(self.model, parameters)
        before = self.before(config)
        tensors = [p.detach() for p in trainable(self.model).values()]
        start = [t.clone() for t in tensors]
        loss = self.train(config)
        alpha = FedDynSent.from_config(config).alpha
        gradients = [
            g - alpha * (t - s)
            for g, t, s in zip(self.linear(tensors, config), tensors, start, strict=True)
        ]
        # once stored, it would corrupt all later rounds
        if not all(bool(torch.isfinite(g).all()) for g in gradients):
            raise ValueError(
                "local training diverged: lower train.learning-rate or raise feddyn.alpha"
            )
        self.store.save("feddyn", [g.cpu().numpy() for g in gradients], config)
        return get_arrays(self.model), len(self.data.train), {"loss": loss, **before}

    def penalty(self, tensors: Sequence[Tensor], config: Config) -> tuple[float, Terms]:
        """Return the gradient of both terms: ``alpha theta - alpha theta^{t-1} -
        g_i``.
        """
        alpha = FedDynSent.from_config(config).alpha
        return alpha, [([t.clone() for t in tensors], -alpha), (self.linear(tensors, config), -1.0)]

    def linear(self, tensors: Sequence[Tensor], config: Config) -> list[Tensor]:
        """Return g_i as stored before this round, or zeros."""
        kept = self.store.load("feddyn", config, before=True)
        if kept is None:
            return [torch.zeros_like(t) for t in tensors]
        if [a.shape for a in kept] != [tuple(t.shape) for t in tensors]:
            raise ValueError(
                f"client {self.client_id} keeps a g_i of another architecture: use another results "
                "folder"
            )
        return [
            torch.tensor(array, device=t.device) for array, t in zip(kept, tensors, strict=True)
        ]
