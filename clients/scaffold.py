"""SCAFFOLD's client: local SGD along ``g - c_i + c``; it keeps its control variate c_i
between rounds.

``c_i+ = c_i - c + (x - y_i) / (K eta)``, so ``c + c_i+ - c_i``, which is sent to the
server, is the mean direction of the round's steps. K is the number of steps actually
taken; with momentum, the effective one (``TrainOptions.effective_steps``).

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", ICML 2020, arXiv 1910.06378, Algorithm 1, option II.
"""

from typing import Any

import torch
from torch import Tensor

from fedapps.algorithms.common.averaging import LIMIT, STATISTICS
from fedapps.algorithms.common.steps import Tensors
from fedapps.algorithms.contract.sent import Reads, ScaffoldSent
from fedapps.clients.base.training import (
    Arrays,
    Config,
    TrainOptions,
    get_arrays,
    set_arrays,
    trainable,
)
from fedapps.clients.fedavg import FedAvgClient
from fedapps.clients.steps.sgd import Penalty


class ScaffoldClient(FedAvgClient):
    """FedAvg's client with control variates."""

    reads: Reads = (ScaffoldSent,)
    differentiates_surrogate = True
    excluded_optimizers = dict.fromkeys(
        ("adam", "adamw"),
        "SCAFFOLD reads the mean gradient from how far its steps went, so they must be SGD's: "
        "choose sgd",
    )

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return y_i followed by c + c_i+ - c_i; store c_i+."""
        state = self.model.state_dict()
        set_arrays(self.model, parameters[: len(state)])
        before = self.before(config)
        learned = {
            name: tensor
            for name, tensor in state.items()
            if tensor.is_floating_point()
            and not name.endswith(STATISTICS)
            and bool((tensor.abs() <= LIMIT).all())  # no mask
        }
        c = self.like(learned, parameters[len(state) :])
        kept = self.store.load("control", config, before=True)
        own = (
            self.like(learned, kept)
            if kept
            else {name: torch.zeros_like(t) for name, t in learned.items()}
        )
        start = {name: t.clone() for name, t in learned.items()}
        moving = trainable(self.model)
        self._correction = [c[name] - own[name] for name in moving]
        loss = self.train(config)
        options = TrainOptions.from_config(config)
        # 1 / (K eta)
        scale = 1 / (
            options.rate(self.round(config)) * options.effective_steps(len(self.data.train))
        )
        direction = {n: scale * (start[n] - t) if n in moving else c[n] for n, t in learned.items()}
        # once stored, it would corrupt all later rounds
        if not all(bool(torch.isfinite(d).all()) for d in direction.values()):
            raise ValueError("local training diverged: lower train.learning-rate")
        self.store.save(
            "control", [(own[n] - c[n] + direction[n]).cpu().numpy() for n in learned], config
        )
        reply = get_arrays(self.model) + [d.cpu().numpy() for d in direction.values()]
        return reply, len(self.data.train), {"loss": loss, **before}

    def penalty(self, tensors: Tensors, config: Config) -> Penalty:
        """Return the gradient correction, ``c - c_i``."""
        return Penalty(terms=[(self._correction, 1.0)])

    def like(self, learned: dict[str, Tensor], arrays: Arrays) -> dict[str, Tensor]:
        """Return arrays as tensors under the names of the learned ones; raises
        ``ValueError`` if their shapes do not match.
        """
        if [a.shape for a in arrays] != [tuple(t.shape) for t in learned.values()]:
            raise ValueError(
                f"client {self.client_id} has control variates of another architecture: use "
                "another results folder, and Scaffold"
            )
        return {
            n: torch.tensor(a, device=t.device)
            for (n, t), a in zip(learned.items(), arrays, strict=True)
        }
