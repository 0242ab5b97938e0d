"""APFL's client; source and equations: ``strategies/apfl.py``."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.algorithms.common.modules import estimate_statistics
from fedapps.algorithms.common.steps import Gradient, State
from fedapps.algorithms.contract.sent import APFLScoring, APFLTraining
from fedapps.clients.base.training import Config, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.steps.sgd import Optimiser, between, inner, scaled


class APFLClient(PersonalClient):
    """Trains w as FedAvg does, and a personal v at the mixture ``alpha v + (1 - alpha)
    w``. The mixture is evaluated.

    A step takes both gradients at the same mini-batch and the same iterates. If alpha
    is learned, it descends along ``<v - w, gradient at the mixture>`` once per round,
    at the first mini-batch: there w is the server's model, with which v is mixed at
    evaluation; later in the round w is already adapted to this client, which would draw
    alpha to 0. Running statistics of normalisation layers see both forward passes.
    """

    kept_as = "apfl"
    reads = (APFLTraining,)
    differentiates_surrogate = True
    needs_all_steps = ""

    def train_round(self, config: Config) -> dict[str, Any]:
        """Train w and v, and alpha if it is learned; store v and alpha."""
        place = [p.detach() for p in trainable(self.model).values()]
        w, (v, alpha) = [t.clone() for t in place], self.own(config, before=True)
        sgd, rate = self.sgd(config)
        learned = torch.tensor(alpha, dtype=torch.float64, device=w[0].device)
        adaptive = APFLTraining.from_config(config).adaptive
        state = {
            "w": w,
            "v": v,
            "alpha": [learned],
            "velocity-w": sgd.velocity(w),
            "velocity-v": sgd.velocity(v),
            "rate": rate,
        }
        step = Both(sgd, personal=bool(alpha or adaptive), adaptive=adaptive)
        loss = self.run(step, state, config, moving=lambda i: {"first": float(i == 0)})
        torch._foreach_copy_(place, w)
        alpha = float(learned)
        self.store.save(self.kept_as, [*(t.cpu().numpy() for t in v), np.array([alpha])], config)
        return {"loss": loss, "apfl-alpha": alpha}

    def take_own(self, config: Config) -> dict[str, float]:
        """Turn ``self.model`` into the mixture of v and the server's model; return
        alpha as a metric.
        """
        mixed = [p.detach() for p in trainable(self.model).values()]
        v, alpha = self.own(config, before=False)
        torch._foreach_lerp_(mixed, v, alpha)
        if alpha:
            estimate_statistics(self.model, self.data.train.x)
        return {"apfl-alpha": alpha}

    def own(self, config: Config, before: bool) -> tuple[list[Tensor], float]:
        """Return v and alpha; before a client's first training the received model and
        the server's alpha.
        """
        parameters = [p.detach() for p in trainable(self.model).values()]
        like = [*parameters, torch.zeros(1)]
        kept = self.stored(self.kept_as, "personal model", like, config, before)
        if kept is None:
            return [p.clone() for p in parameters], APFLScoring.from_config(config).alpha
        return kept[:-1], float(kept[-1])


@dataclass(frozen=True)
class Both:
    """A step of w and, if ``personal``, of v, at the same mini-batch and iterates; if
    ``adaptive``, the first is one of alpha, too.

    ``state``: ``w``, ``v``, their velocities, ``alpha``, ``rate``, and ``first``, 1 at
    the first step, else 0.
    """

    by_cohort = True
    sgd: Optimiser
    personal: bool
    adaptive: bool

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        w, v, rate = state["w"], state["v"], state["rate"]
        loss, to_w = gradient(w)
        if self.personal:
            (exact,) = state["alpha"]
            alpha = exact.to(w[0].dtype)
            _, at_mixture = gradient(between(gradient, w, v, [alpha] * len(w)))
            if self.adaptive:
                (slope,) = inner((torch._foreach_sub(v, w), at_mixture))
                exact.sub_(state["first"] * rate * slope).clamp_(0, 1)
            self.sgd(v, scaled(at_mixture, alpha), state["velocity-v"], rate)
        self.sgd(w, to_w, state["velocity-w"], rate)
        return loss
