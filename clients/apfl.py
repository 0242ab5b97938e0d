"""APFL's client; source and equations: ``strategies/apfl.py``."""

from typing import Any

import torch
from torch import Tensor

from clients.base.training import SGD, Arrays, Config, TrainOptions, get_arrays, set_arrays, trainable
from clients.families.personal_model import PersonalClient


class APFLClient(PersonalClient):
    """Trains w as FedAvg does, and a personal v at the mixture ``alpha v + (1 - alpha) w``, which is what is evaluated.

    A step takes both gradients at the same mini-batch and the same iterates. If alpha is learned, it descends along ``<v - w, gradient
    at the mixture>`` once per round, at the first mini-batch: there w is the server's model, with which v is mixed at evaluation; later
    in the round w is already adapted to this client, which would draw alpha to 0. Running statistics of normalisation layers see both
    forward passes.
    """

    kept_as = "apfl"
    differentiates_surrogate = True

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return w; store v and alpha."""
        set_arrays(self.model, parameters)
        before = self.before(config)
        parameters_ = list(trainable(self.model).values())
        mixed = [p.detach() for p in parameters_]
        w = [t.clone() for t in mixed]
        v, alpha = self.own(config, before=True)
        options = TrainOptions.from_config(config)
        rate, adaptive = options.rate(self.round(config)), bool(config["apfl-adaptive"])
        of_w, of_v = (SGD(tensors, rate, options.momentum, options.weight_decay) for tensors in (w, v))
        total = self.zero_loss()
        for x, y in self.batches(options, config):
            _write(mixed, w)
            loss = self.loss(x, y)
            to_w = torch.autograd.grad(self.surrogate(loss, config), parameters_)
            if alpha or adaptive:
                _write(mixed, torch._foreach_lerp(w, v, alpha))
                at_mixture = torch.autograd.grad(self.surrogate(self.loss(x, y), config), parameters_)
                changed = alpha
                if adaptive:
                    slope = sum(torch.vdot((b - a).flatten(), g.flatten()) for a, b, g in zip(w, v, at_mixture, strict=True))
                    changed, adaptive = min(1.0, max(0.0, alpha - rate * float(slope))), False
                if alpha:
                    of_v.step(list(at_mixture), scale=alpha)
                alpha = changed
            of_w.step(list(to_w))
            total += loss.detach() * len(y)
        _write(mixed, w)
        self.store.save(self.kept_as, [*(t.cpu().numpy() for t in v), torch.tensor([alpha], dtype=torch.float64).numpy()], config)
        return (
            get_arrays(self.model),
            len(self.data.train),
            {"loss": float(total) / self.samples_seen(options), "apfl-alpha": alpha, **before},
        )

    def take_own(self, config: Config) -> dict[str, float]:
        """Turn ``self.model`` into the mixture of v and the server's model; return alpha as a metric."""
        mixed = [p.detach() for p in trainable(self.model).values()]
        v, alpha = self.own(config, before=False)
        _write(mixed, torch._foreach_lerp(mixed, v, alpha))
        return {"apfl-alpha": alpha}

    def own(self, config: Config, before: bool) -> tuple[list[Tensor], float]:
        """Return v and alpha; before a client's first training the received model and the server's alpha."""
        parameters = trainable(self.model).values()
        if (kept := self.kept(config, before)) is None:
            return [p.detach().clone() for p in parameters], float(config["apfl-alpha"])
        return [torch.tensor(a, device=p.device) for a, p in zip(kept, parameters, strict=False)], float(kept[-1][0])

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of v and of alpha."""
        return [*(tuple(p.shape) for p in trainable(self.model).values()), (1,)]


def _write(into: list[Tensor], values: list[Tensor] | tuple[Tensor, ...]) -> None:
    torch._foreach_copy_(into, values)
