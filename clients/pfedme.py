"""pFedMe's client; source and equations: ``strategies/pfedme.py``."""

from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedapps.algorithms.common.steps import Epochs, Gradient, State, batch_sizes
from fedapps.algorithms.contract.sent import PFedMeSent
from fedapps.clients.base.training import Config, TrainOptions, get_arrays, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.steps.sgd import Optimiser, add

PAPER_LAMBDA = 15.0


class PFedMeClient(PersonalClient):
    """Minimises the Moreau envelope ``min_theta f_i(theta) + (lambda/2) ||theta -
    w_i||^2`` of its loss; theta is the personal model.

    After every K inner steps on theta, ``w_i <- w_i - rate lambda (w_i - theta)``. With
    ``pfedme-batches`` "next" every inner step takes the next mini-batch, so that a
    round costs as much as FedAvg's; with "same" (the paper) all K take the same one, so
    that w moves after every mini-batch, K times as often, at K times the cost.
    """

    kept_as = "pfedme"
    reads = (PFedMeSent,)
    differentiates_surrogate = True
    needs_all_steps = "its w moves once in pfedme.inner-steps, and after the last step"

    def train(self, config: Config) -> float:
        """Train w_i in ``self.model`` from the received model, store theta; return the
        mean loss at theta.
        """
        # raises rather than overwrite another architecture's model
        _ = self.kept(config, before=True)
        options = TrainOptions.from_config(config)
        theta = [p.detach() for p in trainable(self.model).values()]
        w = [t.clone() for t in theta]
        sent = PFedMeSent.from_config(config)
        # the paper's lambda, or 1 / the learning rate if that is less
        bounded = 1 / max(1 / PAPER_LAMBDA, options.learning_rate)
        lambda_, every = sent.lambda_ or bounded, sent.inner_steps
        sgd, inner = self.sgd(config)
        outer = lambda_ * (sent.rate or inner)
        if outer > 1:
            raise ValueError(
                f"pfedme.lambda x rate = {outer:g}: w would jump beyond theta: lower pfedme.rate "
                "or pfedme.lambda"
            )
        same = sent.batches == "same"
        steps = self.steps_of(options) * (every if same else 1)
        loss = self.run(
            Envelope(sgd, lambda_),
            {"theta": theta, "w": w, "velocity": sgd.velocity(theta), "rate": inner},
            config,
            repeated(self.epochs(options, config), options.batch_size, every, self.model)
            if same
            else None,
            moving=lambda i: {"outer": outer if (i + 1) % every == 0 or i + 1 == steps else 0.0},
        )
        self.store.save(self.kept_as, get_arrays(self.model), config)
        torch._foreach_copy_(theta, w)
        return loss


def repeated(epochs: Epochs, batch_size: int, times: int, module: nn.Module) -> Epochs:
    """Yield samples that are cut into the same mini-batches, each repeated several
    times in a row.
    """
    with closing(epochs):
        for x, y in epochs:
            whole = batch_size * batch_sizes(x, batch_size, module).count(batch_size)
            places = torch.arange(whole, device=y.device).view(-1, 1, batch_size)
            if whole:
                repeats = places.expand(-1, times, -1).flatten()
                yield x[repeats], y[repeats]
            # the last one may have another size: on its own, so that cuts fall right
            for _ in range(times if whole < len(y) else 0):
                yield x[whole:], y[whole:]


@dataclass(frozen=True)
class Envelope:
    """A step of theta, after which w moves the share ``outer`` of the way to it;
    ``state``: ``theta``, ``w``, ``velocity``, ``rate``.
    """

    by_cohort = True
    sgd: Optimiser
    lambda_: float

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        theta, w, outer = state["theta"], state["w"], state["outer"]
        loss, gradients = gradient(theta)
        self.sgd(
            theta,
            gradients,
            state["velocity"],
            state["rate"],
            self.lambda_,
            [(w, -self.lambda_)],
        )
        if isinstance(outer, Tensor) or outer:
            add(w, torch._foreach_sub(theta, w), outer)
        return loss
