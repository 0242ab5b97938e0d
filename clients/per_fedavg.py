"""Per-FedAvg's client; source and equations: ``strategies/per_fedavg.py``."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedapps.algorithms.common.modules import evaluation_batch
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import Eager, Gradient, State, Tensors
from fedapps.algorithms.contract.sent import PerFedAvgScoring, PerFedAvgTraining
from fedapps.clients.base.training import Config, TrainOptions, get_arrays, set_arrays, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.steps.batches import drawn
from fedapps.clients.steps.sgd import Optimiser, add, inner, scaled

#: Length of ``delta v``, the way to either side at which the difference of gradients is
#: taken.
REACH = 1e-2


class PerFedAvgClient(PersonalClient):
    """Descends the loss after a step of adaptation; is scored after such steps along
    the full gradient. Keeps nothing.
    """

    epochs_before_use = "per-fedavg-steps"  # each goes through all samples once
    reads = (PerFedAvgTraining, PerFedAvgScoring)
    differentiates_surrogate = True
    needs_all_steps = ""

    def train(self, config: Config) -> float:
        """Train ``self.model`` for one round; return the mean loss of the adapted
        models.
        """
        options, sent = TrainOptions.from_config(config), PerFedAvgTraining.from_config(config)
        place = [p.detach() for p in trainable(self.model).values()]
        w, (sgd, rate) = [t.clone() for t in place], self.sgd(config)
        step = Meta(sgd, sent.alpha, sent.hessian == "differences")
        adapted = self.first_adapted(w, sent.alpha, options, config)
        state = {"w": w, "adapted": adapted, "velocity": sgd.velocity(w), "rate": rate}
        loss = self.run(step, state, config)
        torch._foreach_copy_(place, w)
        return loss

    def first_adapted(
        self, w: Tensors, alpha: float, options: TrainOptions, config: Config
    ) -> Tensors:
        """Return w after a step of adaptation on a mini-batch of its own draw."""
        data, statistics = self.data.train, get_arrays(self.model)
        rng = generator(*self.draw("adaptation", config))
        steps = Eager(self.problem(config))
        steps.batch = drawn(data, rng.permutation(len(data))[: options.batch_size], rng)
        with self.training(config, "dropout in adaptation"):
            _, gradients = steps(w)
        set_arrays(self.model, statistics)
        return list(torch._foreach_sub(w, gradients, alpha=alpha))

    def take_own(self, config: Config) -> dict[str, float]:
        """Adapt ``self.model`` along the gradient of the mean training loss."""
        data, sent = self.data.train, PerFedAvgScoring.from_config(config)
        problem = self.problem(config)
        place, parameters = (
            [p.detach() for p in problem.moving.values()],
            list(problem.moving.values()),
        )
        # the gradient is that of the model as it is used: no dropout, statistics as
        # received
        self.model.eval()
        size = evaluation_batch(self.model, data.x)
        for _ in range(sent.steps):
            total = [torch.zeros_like(t) for t in place]
            for x, y in zip(data.x.split(size), data.y.split(size), strict=True):
                add(
                    total,
                    torch.autograd.grad(
                        problem.surrogate(problem.loss(x, y)), parameters, materialize_grads=True
                    ),
                    len(y) / len(data),
                )
            add(place, total, -sent.alpha)
        return {}


@dataclass(frozen=True)
class Meta:
    """A step of w along the gradient at the adapted model, ``w - alpha grad`` at the
    mini-batch before; then that of the next step.

    So each mini-batch is used twice, and the two gradients of a step are of different
    mini-batches, as in the source. ``hessian``: with the correction ``- alpha hess f(w)
    v``. ``state``: ``w``, ``adapted``, ``velocity``, ``rate``.
    """

    by_cohort = True
    sgd: Optimiser
    alpha: float
    hessian: bool

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        w, adapted = state["w"], state["adapted"]
        loss, v = gradient(adapted)
        if self.hessian:
            delta = REACH / (inner((v, v))[0].sqrt() + 1e-12)
            way = scaled(v, delta)
            _, ahead = gradient(list(torch._foreach_add(w, way)))
            _, behind = gradient(list(torch._foreach_sub(w, way)))
            product = torch._foreach_sub(ahead, behind)
            v = list(torch._foreach_sub(v, scaled(product, self.alpha / (2 * delta))))
        self.sgd(w, v, state["velocity"], state["rate"])
        _, here = gradient(w)
        torch._foreach_copy_(adapted, torch._foreach_sub(w, here, alpha=self.alpha))
        return loss
