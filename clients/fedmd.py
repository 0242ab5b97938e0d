"""FedMD's client: fits the consensus on the public samples, trains on its own, and
sends its scores on the public ones; source and contract: ``strategies/fedmd.py``.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import l1_loss

from fedapps.algorithms.common.modules import outputs_of
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import Epochs, Problem
from fedapps.algorithms.contract.sent import FedMDSent
from fedapps.clients.base.data import Split
from fedapps.clients.base.training import (
    Arrays,
    Config,
    TrainOptions,
    get_arrays,
    set_arrays,
    trainable,
)
from fedapps.clients.families.own_net import OwnNetClient
from fedapps.clients.steps.batches import epochs
from fedapps.clients.steps.sgd import descent


class FedMDClient(OwnNetClient):
    """Trains its own net on the consensus and on its samples. ``public``: the public
    samples (m, ...), to be set before it trains.
    """

    reads = (FedMDSent,)
    differentiates_surrogate = False  # it fits the consensus, too
    needs_all_steps = "it fits the consensus, too"
    public: Tensor

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the own net and store it; return its scores (m, C)."""
        set_arrays(self.model, self.own_model(config, before=True))
        before = self.before(config)
        if wanted := FedMDSent.from_config(config).epochs:
            self.digest(parameters[0], wanted, config)
        loss = self.train(config)
        self.store.save("model", get_arrays(self.model), config)
        scores = outputs_of(self.model, self.public).float().cpu().numpy()
        return [scores], len(self.data.train), {"loss": loss, **before}

    def digest(self, consensus: Any, wanted: int, config: Config) -> None:
        """Fit the consensus (m, C) for some epochs."""
        targets = torch.tensor(consensus, device=self.public.device)
        options = replace(TrainOptions.from_config(config), local_epochs=wanted)
        rng = generator(*self.draw("public batches", config))

        def samples() -> Epochs:
            with self.training(config, "digest"):
                yield from epochs(Split(self.public, targets), options, rng)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return l1_loss(self.model(x), y)

        w, (sgd, rate) = [p.detach() for p in trainable(self.model).values()], self.sgd(config)
        problem = Problem(self.model, loss, criterion=l1_loss)
        self.run(*descent(sgd, w, rate), config, samples(), problem)
