"""FedALA's client; source and equations: ``strategies/fedala.py``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import Epochs, Gradient, State
from fedapps.algorithms.contract.sent import FedALASent
from fedapps.algorithms.personal.mixing import layer_of
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.steps.batches import drawn


class FedALAClient(PersonalClient):
    """Starts training, and is scored, between its own model and the received one, at
    learned weights.
    """

    kept_as = "fedala"
    reads = (FedALASent,)
    differentiates_surrogate = True
    needs_all_steps = ""
    _mixed: Sequence[int] = ()

    def train_round(self, config: Config) -> dict[str, Any]:
        """Train from the mixture; store the trained model, and the weights."""
        weights, learned = self.merge(config, before=True)
        metrics = super().train_round(config)
        own = [*get_arrays(self.model), *(w.cpu().numpy() for w in weights), np.array([learned])]
        self.store.save(self.kept_as, own, config)
        return metrics

    def take_own(self, config: Config) -> dict[str, float]:
        """Turn ``self.model`` into the model at which the client's next round would
        start.
        """
        self.merge(config, before=False)
        return {}

    def merge(self, config: Config, before: bool) -> tuple[list[Tensor], int]:
        """Learn the weights for the received model in ``self.model`` and mix it; return
        them, and how often they were learned.
        """
        received = get_arrays(self.model)
        named, place = trainable(self.model), [p.detach() for p in trainable(self.model).values()]
        new, at = [t.clone() for t in place], self.mixed(config)
        kept = self.kept(config, before)
        if kept is None:
            return [torch.ones_like(new[i]) for i in at], 0
        whole = len(received)
        last = dict(zip(self.model.state_dict(), kept[:whole], strict=True))
        old = [torch.tensor(last[name], device=p.device) for name, p in named.items()]
        weights = [
            torch.tensor(a, device=new[i].device) for a, i in zip(kept[whole:-1], at, strict=True)
        ]
        sent = FedALASent.from_config(config)
        learned, rate = int(kept[-1][0]), sent.rate
        if at and rate:
            passes = 1 if learned else sent.start_epochs
            state = {"weights": weights, "old": tuple(old), "new": tuple(new), "rate": rate}
            self.run(Adapt(tuple(at)), state, config, self.samples(passes, config))
        set_arrays(self.model, received)  # running statistics too, which learning has changed
        for i, w in zip(at, weights, strict=True):
            place[i].copy_(torch.lerp(old[i], new[i], w))
        return weights, learned + 1

    def mixed(self, config: Config) -> list[int]:
        """Return the places of the upper layers' parameters."""
        layers = layer_of(list(trainable(self.model)))
        below = max(layers) - FedALASent.from_config(config).layers
        return [i for i, layer in enumerate(layers) if layer > below]

    def samples(self, passes: int, config: Config) -> Epochs:
        """Yield the samples on which weights are learned, in a new order for each
        pass.
        """
        data = self.data.train
        rng = generator(*self.draw("local aggregation", config))
        share = FedALASent.from_config(config).samples
        chosen = rng.permutation(len(data))[: max(1, round(share * len(data)))]
        with self.training(config, "dropout in local aggregation"):
            for _ in range(passes):
                yield drawn(data, rng.permutation(chosen), rng)

    def kept(self, config: Config, before: bool) -> Arrays | None:
        """Return the stored model, weights and count, or ``None``. Raises
        ``ValueError`` if they do not fit the model.
        """
        self._mixed = self.mixed(config)
        return super().kept(config, before)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the model, of the weights and of the count."""
        learned = list(trainable(self.model).values())
        return [*super().shapes(), *(tuple(learned[i].shape) for i in self._mixed), (1,)]


@dataclass(frozen=True)
class Adapt:
    """A step of the weights W at ``old + W (new - old)`` in the tensors ``at``, and at
    ``new`` in the others.

    ``state``: ``weights``, ``rate``, and all tensors of ``old`` and ``new``.
    """

    at: tuple[int, ...]

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        weights, old, new, rate = state["weights"], state["old"], state["new"], state["rate"]
        point = list(new)
        for w, i in zip(weights, self.at, strict=True):
            point[i] = torch.lerp(old[i], new[i], w)
        loss, gradients = gradient(point)
        for w, i in zip(weights, self.at, strict=True):
            w.sub_(rate * gradients[i] * (new[i] - old[i])).clamp_(0, 1)
        return loss
