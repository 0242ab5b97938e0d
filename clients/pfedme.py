"""pFedMe's client; source and equations: ``strategies/pfedme.py``."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clients.base.steps import SGD, Gradient, Numbers, State, add, one
from clients.base.training import Config, TrainOptions, get_arrays, trainable
from clients.families.personal_model import PersonalClient


class PFedMeClient(PersonalClient):
    """Minimises the Moreau envelope ``min_theta f_i(theta) + (lambda/2) ||theta - w_i||^2`` of its loss; theta is the personal model.

    Each inner step on theta takes the next mini-batch (in the paper, all of them take the same one), so that a round costs as much as
    FedAvg's; then ``w_i <- w_i - rate lambda (w_i - theta)``.
    """

    kept_as = "pfedme"
    differentiates_surrogate = True

    def train(self, config: Config) -> float:
        """Train w_i in ``self.model`` from the received model, store theta; return the mean loss at theta."""
        _ = self.kept(config, before=True)  # raises rather than overwrite another architecture's model
        options = TrainOptions.from_config(config)
        theta = [p.detach() for p in trainable(self.model).values()]
        w = [t.clone() for t in theta]
        lambda_, every = float(config["pfedme-lambda"]), int(config["pfedme-inner-steps"])
        inner = options.rate(self.round(config))
        outer = lambda_ * (float(config["pfedme-rate"]) or inner)
        if outer > 1:
            raise ValueError(f"pfedme.lambda x rate = {outer:g}: w would jump beyond theta: lower pfedme.rate or pfedme.lambda")
        sgd, steps = SGD(options.momentum, options.weight_decay), self.steps_of(options)
        loss = self.run(
            Envelope(sgd, lambda_),
            {"theta": theta, "w": w, "velocity": sgd.velocity(theta)},
            {},
            lambda step: {"rate": inner, "outer": outer if (step + 1) % every == 0 or step + 1 == steps else 0.0},
            config,
        )
        self.store.save(self.kept_as, get_arrays(self.model), config)
        torch._foreach_copy_(theta, w)
        return loss


@dataclass(frozen=True)
class Envelope:
    """A step of theta, after which w moves the share ``outer`` of the way to it; ``state``: ``theta``, ``w``, ``velocity``."""

    sgd: SGD
    lambda_: float

    def __call__(self, gradient: Gradient, state: State, numbers: Numbers) -> Tensor:
        """Take the step."""
        theta, w, outer = state["theta"], state["w"], one(numbers["outer"])
        loss, gradients = gradient(theta)
        self.sgd(theta, gradients, state["velocity"], one(numbers["rate"]), self.lambda_, [(w, -self.lambda_)])
        if isinstance(outer, Tensor) or outer:
            add(w, torch._foreach_sub(theta, w), outer)
        return loss
