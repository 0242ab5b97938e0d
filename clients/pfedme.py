"""pFedMe's client; source and equations: ``strategies/pfedme.py``."""

import torch

from clients.base.training import SGD, Config, TrainOptions, get_arrays, trainable
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
        parameters = list(trainable(self.model).values())
        theta = [p.detach() for p in parameters]
        w = [t.clone() for t in theta]
        lambda_, every = float(config["pfedme-lambda"]), int(config["pfedme-inner-steps"])
        inner = options.rate(self.round(config))
        outer = lambda_ * (float(config["pfedme-rate"]) or inner)
        if outer > 1:
            raise ValueError(f"pfedme.lambda x rate = {outer:g}: w would jump beyond theta: lower pfedme.rate or pfedme.lambda")
        optimiser = SGD(theta, inner, options.momentum, options.weight_decay)
        steps, total = 0, self.zero_loss()
        for x, y in self.batches(options, config):
            loss = self.loss(x, y)
            optimiser.step(torch.autograd.grad(self.surrogate(loss, config), parameters), lambda_, [(w, -lambda_)])
            total += loss.detach() * len(y)
            steps += 1
            if steps % every == 0:
                torch._foreach_lerp_(w, theta, outer)
        if steps % every:  # the last, shorter series
            torch._foreach_lerp_(w, theta, outer)
        self.store.save(self.kept_as, get_arrays(self.model), config)
        for t, value in zip(theta, w, strict=True):
            t.copy_(value)
        return float(total) / self.samples_seen(options)
