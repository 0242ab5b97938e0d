"""Regression of a network on target outputs, with Adam.

One loop serves functional boosting (a client fits a weak learner to a functional
gradient) and distillation (the server fits one network to an ensemble's outputs).
Inputs and targets stay on their device, nothing is copied or synchronised within an
epoch, and the sample order comes from the generator passed in: the same arguments give
the same network.

Distillation of an ensemble of networks into one, on unlabelled public points, minimises
``sum_x || h_theta(x) - (teacher)(x) ||^2`` over the points x of a public set with Adam.
The teacher is a combination of outputs (logits), so it can be evaluated exactly, once,
network by network.

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, equation (17).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.boosting.fit_options import (
    DistillOptions as DistillOptions,
    FitOptions as FitOptions,
)
from fedapps.algorithms.common.adam import descend
from fedapps.algorithms.common.modules import (
    Arrays,
    get_arrays,
    outputs_of,
    set_arrays,
    torch_seeded,
)
from fedapps.algorithms.common.steps import (
    Eager,
    Epochs,
    Gradient,
    Problem,
    Runner,
    State,
    Tensors,
)


class Diverged(ValueError):
    """A fit produced non-finite values; its network must not be used."""


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared difference of two arrays (n, ...), averaged over samples and
    outputs.
    """
    return functional.mse_loss(outputs, _of_same_shape(targets, outputs))


def divergence(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ``KL(softmax(targets) || softmax(outputs))`` of logits (n, classes),
    averaged over samples.
    """
    wanted = _of_same_shape(targets, outputs).log_softmax(1)
    return functional.kl_div(outputs.log_softmax(1), wanted, reduction="batchmean", log_target=True)


def _of_same_shape(targets: Tensor, outputs: Tensor) -> Tensor:
    if outputs.shape != targets.shape:  # broadcasting would silently fit something else
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)}, but targets of shape {tuple(targets.shape)}"
        )
    return targets


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": squared_error, "kl": divergence}


def fit_network(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    options: FitOptions,
    generator: np.random.Generator,
    runner: Runner = Eager,
) -> float:
    """Fit ``module`` in place to ``targets`` (n, ...) at ``inputs`` (n, ...); return
    the mean training loss of the last epoch.

    Raises ``Diverged`` if the loss or a final parameter is not finite, ``ValueError``
    if targets and inputs do not match.
    """
    count = len(inputs)
    if not count or len(targets) != count:
        raise ValueError(
            f"{count} inputs and {len(targets)} targets: give one target for each input, at least "
            "one"
        )
    loss_of = LOSSES[options.loss]
    batches = -(-count // options.batch_size)
    steps = options.steps or options.epochs * batches
    before_last = (steps - 1) // batches * batches

    def epochs(steps: int) -> Epochs:
        for left in range(steps, 0, -batches):
            order = torch.from_numpy(generator.permutation(count)[: left * options.batch_size]).to(
                inputs.device
            )
            yield inputs[order], targets[order]

    problem = Problem(module, lambda x, y: loss_of(module(x), y), criterion=loss_of)
    adam = Adam(options.weight_decay, options.clip)
    parameters = [p.detach() for p in problem.moving.values()]
    state = {**adam.state(parameters), "rate": options.learning_rate}

    def go(first: int, steps: int) -> float:
        def number(i: int) -> dict[str, float]:
            return {"step": first + i + 1.0}

        return runner.run(problem, adam, state, epochs(steps), options.batch_size, number)[0]

    was_training = module.training
    module.train()
    with torch_seeded(int(generator.integers(2**63)), inputs.device):
        go(0, before_last)
        last = steps - before_last
        mean = go(before_last, last) / min(count, last * options.batch_size)
    _check_finite(mean, parameters, options)  # no loss was computed after the last step
    module.train(was_training)
    return mean


@dataclass(frozen=True)
class Adam:
    """A step of Adam with beta = (0.9, 0.999); gradients are clipped to norm ``clip``
    (0: not).

    ``state``: that of :meth:`state`, ``rate``, and ``step``, 1 for the first.
    """

    weight_decay: float = 0.0
    clip: float = 0.0

    def state(self, parameters: Tensors) -> State:
        """Return what a step changes: parameters ``w`` and the moments of their
        gradients, which are zeros.
        """
        return {
            "w": parameters,
            **{name: [torch.zeros_like(p) for p in parameters] for name in ("first", "second")},
        }

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        loss, gradients = gradient(state["w"])
        self.descend(state, gradients, state["rate"], state["step"])
        return loss

    def descend(
        self, state: State, gradients: Tensors, rate: float | Tensor, step: float | Tensor
    ) -> None:
        """Take the step along ``gradients``, which it overwrites."""
        w, first, second = state["w"], state["first"], state["second"]
        if self.clip:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1))
        taken = torch.as_tensor(step, device=w[0].device, dtype=torch.float32)
        descend(w, gradients, (first, second), taken, rate, self.weight_decay)


def _check_finite(loss: float, parameters: list[Tensor], options: FitOptions) -> None:
    if not np.isfinite(loss) or not all(bool(torch.isfinite(p).all()) for p in parameters):
        raise Diverged(
            f"the fit diverged (loss {loss:g} at learning-rate = {options.learning_rate:g}): lower "
            "it, or check the inputs and targets"
        )


class Distiller:
    """Distils into ``module`` on the public points ``inputs`` (m, ...); both must be on
    the same device.
    """

    def __init__(self, module: nn.Module, inputs: Tensor) -> None:
        if not len(inputs):
            raise ValueError("no public points: distillation needs at least one")
        self.module, self.inputs = module, inputs

    def outputs(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        """Return the outputs (m, ...) of the network with parameters ``arrays``."""
        set_arrays(self.module, arrays)
        return outputs_of(self.module, self.inputs)

    def distil(
        self,
        start: Sequence[NDArray[Any]],
        targets: Tensor,
        options: FitOptions,
        generator: np.random.Generator,
    ) -> tuple[Arrays, float]:
        """Fit the network to ``targets`` (m, ...) from ``start``; return its arrays and
        the mean loss of the last epoch.
        """
        set_arrays(self.module, start)
        loss = fit_network(self.module, self.inputs, targets, options, generator)
        return get_arrays(self.module), loss
