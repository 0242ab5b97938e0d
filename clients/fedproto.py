"""Client of FedProto and FedTGP: trains its own net, and sends sums of its
representations by class; source and contract: ``strategies/fedproto.py``.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.modules import class_sums, outputs_of
from fedapps.algorithms.common.steps import Problem
from fedapps.algorithms.contract.sent import FedProtoSent
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.families.own_net import OwnNetClient
from fedapps.clients.partial_sharing import head_of
from fedapps.clients.steps.sgd import descent


class FedProtoClient(OwnNetClient):
    """Pulls the representations of its samples to the prototypes of their classes. The
    reported training loss includes the pull.
    """

    reads = (FedProtoSent,)
    differentiates_surrogate = False  # the pull is minimised, too
    needs_all_steps = ""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the own net and store it; return its sums (C, D) and shares (C,)."""
        set_arrays(self.model, self.own_model(config, before=True))
        before = self.before(config)
        inside = Representation(self.model, parameters[0].shape[1])
        loss = self.train_towards(parameters, inside, config)
        self.store.save("model", get_arrays(self.model), config)
        data = self.data.train
        sent = class_sums(outputs_of(inside, data.x), data.y, len(parameters[1]))
        return sent, len(data), {"loss": loss, **before}

    def train_towards(self, parameters: Arrays, inside: "Representation", config: Config) -> float:
        """Take the local steps of a round; return the mean loss."""
        sums, shares = parameters
        known, device = shares > 0, self.data.train.y.device
        prototypes = torch.tensor(sums / np.where(known, shares, 1)[:, None], device=device)
        pull = FedProtoSent.from_config(config).lambda_
        weight = torch.tensor(np.float32(pull * known), device=device)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h, outputs = inside.both(x)
            far = (h - prototypes[y]).square().mean(1)
            return self.objective.loss(outputs, y) + (weight[y] * far).mean()

        w, (sgd, rate) = [p.detach() for p in trainable(self.model).values()], self.sgd(config)
        problem = Problem(self.model, loss, self.surrogate(config))
        return self.run(*descent(sgd, w, rate), config, problem=problem)


class Representation(nn.Module):
    """The input of a net's head: all its numbers for a sample, or if ``size`` is given,
    that many means over neighbouring ones (adaptive average pooling).
    """

    def __init__(self, net: nn.Module, size: int = 0) -> None:
        super().__init__()
        self.net, self.size = net, size
        head = head_of(net)
        self.head = next(m for name, m in net.named_modules() if f"{name}.".startswith(head))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the representation (n, D) and the outputs of the net."""
        seen: list[Tensor] = []
        with self.head.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
            outputs = self.net(x)
        h = seen[0].flatten(1).float()
        if self.size not in (0, h.shape[1]):  # as a product: its gradient is the same on a GPU
            h = h @ functional.adaptive_avg_pool1d(torch.eye(h.shape[1]), self.size).to(h)
        return h, outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the representation (n, D)."""
        return self.both(x)[0]
