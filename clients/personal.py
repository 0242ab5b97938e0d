"""Clients that keep a personal model beside the one they send: APFL, Ditto and pFedMe.

A client that has not trained yet has no personal model: it starts from, and is evaluated with, the received one. Every evaluation also
scores the server's model alone.

Sources: APFL: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461, Algorithm 1. Ditto: Li, Hu,
Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, arXiv 2012.04221, Algorithm 1. pFedMe:
Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, arXiv 2006.08848, Algorithm 1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clients.base.training import SGD, Arrays, Config, Terms, TrainOptions, get_arrays, set_arrays, trainable
from clients.fedavg import FedAvgClient, as_global


class PersonalClient(FedAvgClient):
    """Base for clients with a personal model: evaluates the model stored under ``kept_as``."""

    #: Store name, different for each method, so that after a warm start another method's model is not taken for this one's.
    kept_as: str

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the personal model, and those of the server's as ``global-...``."""
        set_arrays(self.model, parameters)
        of_server = as_global(self.score(self.data.test))
        more = self.take_own(config)
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), {**scores, **of_server, **more}

    def take_own(self, config: Config) -> dict[str, float]:
        """Turn ``self.model`` from the server's into the personal model; return further metrics about it."""
        if (kept := self.kept(config, before=False)) is not None:
            set_arrays(self.model, kept)
        return {}

    def kept(self, config: Config, before: bool) -> Arrays | None:
        """Return the stored arrays, or ``None``. Raises ``ValueError`` if they do not fit the model."""
        kept = self.store.load(self.kept_as, config, before)
        if kept is not None and [a.shape for a in kept] != self.shapes():
            raise ValueError(
                f"client {self.client_id} keeps a personal model of another architecture: use another results folder"
            )
        return kept

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the stored arrays."""
        return [tuple(t.shape) for t in self.model.state_dict().values()]


class DittoClient(PersonalClient):
    """Trains the global model as FedAvg does, and a personal v on the loss plus ``(mu/2) ||v - w||^2``, w being the received model."""

    kept_as = "ditto"
    _anchor: Sequence[Tensor] = ()

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained global model; store v."""
        self._anchor = ()
        reply = super().fit(parameters, config)
        set_arrays(self.model, parameters)
        self._anchor = [p.detach().clone() for p in trainable(self.model).values()]
        if (kept := self.kept(config, before=True)) is not None:
            set_arrays(self.model, kept)
        epochs = int(config["ditto-epochs"]) or int(config["local-epochs"])
        own = self.train({**config, "local-epochs": epochs})
        self.store.save(self.kept_as, get_arrays(self.model), config)
        return reply[0], reply[1], {**reply[2], "personal-loss": own}

    def penalty(self, tensors: Sequence[Tensor], config: Config) -> tuple[float, Terms]:
        """Return the gradient of the proximal term, ``mu v - mu w``, while v is trained."""
        mu = float(config["ditto-mu"]) if self._anchor else 0.0
        return (mu, [(list(self._anchor), -mu)]) if mu else (0.0, [])


class PFedMeClient(PersonalClient):
    """Minimises the Moreau envelope ``min_theta f_i(theta) + (lambda/2) ||theta - w_i||^2`` of its loss; theta is the personal model.

    Each inner step on theta takes the next mini-batch (in the paper, all of them take the same one), so that a round costs as much as
    FedAvg's; then ``w_i <- w_i - rate lambda (w_i - theta)``.
    """

    kept_as = "pfedme"

    def train(self, config: Config) -> float:
        """Train w_i in ``self.model`` from the received model, store theta; return the mean loss at theta."""
        _ = self.kept(config, before=True)  # raises rather than overwrite another architecture's model
        options = TrainOptions.from_config(config)
        parameters = list(trainable(self.model).values())
        theta = [p.detach() for p in parameters]
        w = [t.clone() for t in theta]
        lambda_, every = float(config["pfedme-lambda"]), int(config["pfedme-inner-steps"])
        inner = options.rate(self.round(config))
        outer = lambda_ * (float(config["pfedme-rate"]) or inner)
        if outer > 1:
            raise ValueError(f"pfedme.lambda x rate = {outer:g}: w would jump beyond theta: lower pfedme.rate or pfedme.lambda")
        optimiser = SGD(theta, inner, options.momentum, options.weight_decay)
        steps = 0

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal steps
            loss = self.loss(x, y)
            optimiser.step(torch.autograd.grad(loss, parameters), lambda_, [(w, -lambda_)])
            steps += 1
            if steps % every == 0:
                torch._foreach_lerp_(w, theta, outer)
            return loss.detach()

        loss = self.run_epochs(step, options, config)
        if steps % every:  # the last, shorter series
            torch._foreach_lerp_(w, theta, outer)
        self.store.save(self.kept_as, get_arrays(self.model), config)
        for t, value in zip(theta, w, strict=True):
            t.copy_(value)
        return loss


class APFLClient(PersonalClient):
    """Trains w as FedAvg does, and a personal v at the mixture ``alpha v + (1 - alpha) w``, which is what is evaluated.

    A step takes both gradients at the same mini-batch and the same iterates. If alpha is learned, it descends along ``<v - w, gradient
    at the mixture>`` once per round, at the first mini-batch: there w is the server's model, with which v is mixed at evaluation; later
    in the round w is already adapted to this client, which would draw alpha to 0. Running statistics of normalisation layers see both
    forward passes.
    """

    kept_as = "apfl"

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

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal alpha, adaptive
            _write(mixed, w)
            loss = self.loss(x, y)
            to_w = torch.autograd.grad(loss, parameters_)
            if alpha or adaptive:
                _write(mixed, torch._foreach_lerp(w, v, alpha))
                at_mixture = torch.autograd.grad(self.loss(x, y), parameters_)
                changed = alpha
                if adaptive:
                    slope = sum(torch.vdot((b - a).flatten(), g.flatten()) for a, b, g in zip(w, v, at_mixture, strict=True))
                    changed, adaptive = min(1.0, max(0.0, alpha - rate * float(slope))), False
                if alpha:
                    of_v.step(list(at_mixture), scale=alpha)
                alpha = changed
            of_w.step(list(to_w))
            return loss.detach()

        loss = self.run_epochs(step, options, config)
        _write(mixed, w)
        self.store.save(self.kept_as, [*(t.cpu().numpy() for t in v), torch.tensor([alpha], dtype=torch.float64).numpy()], config)
        return get_arrays(self.model), len(self.data.train), {"loss": loss, "apfl-alpha": alpha, **before}

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
