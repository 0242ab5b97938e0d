"""SGD and Adam as steps: as in ``clients.steps.plain``, but on lists of tensors and
without an optimiser object; and operations on such lists for the steps of methods.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedapps.algorithms.common.adam import descend
from fedapps.algorithms.common.steps import Gradient, State, Tensors
from fedapps.clients.base.options import TrainOptions

#: A number of one client, or a tensor (clients,) in a cohort (``cohorts``).
Number = float | Tensor
#: Tensors t_j and their coefficients c_j in a sum.
Terms = Sequence[tuple[Tensors, float]]
#: How many axes of the tensors come before a client's own.
_before: ContextVar[int] = ContextVar("axes of clients", default=0)


@contextmanager
def stacked() -> Iterator[None]:
    """Let the first axis of all tensors be the clients of a cohort."""
    before = _before.set(1)
    try:
        yield
    finally:
        _before.reset(before)


@dataclass(frozen=True)
class SGD:
    """SGD with momentum on lists of tensors: ``v <- momentum v + d``, ``p <- p - rate
    v``.

    One fused operation where this PyTorch has it, else some over all tensors: the same
    numbers up to rounding.
    """

    momentum: float
    weight_decay: float
    max_norm: float = 0.0

    def velocity(self, parameters: Tensors) -> Tensors:
        """Return the velocity to start with: zeros, or nothing if there is no
        momentum.
        """
        return [torch.zeros_like(p) for p in parameters] if self.momentum else []

    def __call__(
        self,
        parameters: Tensors,
        gradients: Tensors,
        velocity: Tensors,
        rate: Number,
        decay: Number = 0.0,
        terms: Terms = (),
        scale: Number = 1.0,
    ) -> None:
        """Take one step along ``d = scale gradients + (weight_decay + decay) p + sum_j
        c_j t_j`` for ``terms`` (t_j, c_j), in place. With ``max_norm`` the norm of
        ``scale gradients``, over all tensors, is at most that.

        Overwrites ``gradients`` if there are terms, a scale or a bound.
        """
        gradients = direction(gradients, scale, self.max_norm, terms)
        decay = self.weight_decay + decay
        numbers = not isinstance(rate, Tensor) and not isinstance(decay, Tensor)
        numbers = numbers and not _before.get()  # fused, bits depend on a number's place
        # what torch.optim.SGD(fused=True) calls; not a promise of PyTorch's
        fused = getattr(torch, "_fused_sgd_", None)
        if numbers and fused is not None and (self.momentum or decay):
            fused(
                parameters,
                gradients,
                velocity,
                weight_decay=decay,
                momentum=self.momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return
        if isinstance(decay, Tensor) or decay:
            add(gradients, parameters, decay)
        if self.momentum:
            torch._foreach_mul_(velocity, self.momentum)
            add(velocity, gradients, 1.0)
        add(parameters, velocity if self.momentum else gradients, -rate)


@dataclass(frozen=True)
class Adam:
    """Adam on lists of tensors, used as :class:`SGD` is. ``momentum`` is beta_1, and
    beta_2 is 0.999. ``decoupled``: AdamW, whose weight decay is no part of ``d``.

    ``velocity`` holds the first moments, the second ones and the number of steps taken.
    """

    momentum: float
    weight_decay: float
    decoupled: bool
    max_norm: float = 0.0

    def velocity(self, parameters: Tensors) -> Tensors:
        """Return the velocity to start with: zeros."""
        zeros = [torch.zeros_like(p) for p in (*parameters, *parameters)]
        return [*zeros, torch.zeros((), dtype=torch.float32, device=parameters[0].device)]

    def __call__(
        self,
        parameters: Tensors,
        gradients: Tensors,
        velocity: Tensors,
        rate: Number,
        decay: Number = 0.0,
        terms: Terms = (),
        scale: Number = 1.0,
    ) -> None:
        """Take one step with the direction ``d`` of :class:`SGD`, which overwrites
        ``gradients``.
        """
        gradients = direction(gradients, scale, self.max_norm, terms)
        if isinstance(decay, Tensor) or decay:
            add(gradients, parameters, decay)
        count, step = len(parameters), velocity[-1].add_(1)
        if step.dim():  # the same for all clients of a cohort; not fused, as in SGD
            step, rate = step[0], torch.as_tensor(rate)
        moments = velocity[:count], velocity[count:-1]
        descend(
            parameters,
            gradients,
            moments,
            step,
            rate,
            self.weight_decay,
            self.decoupled,
            self.momentum,
        )


Optimiser = SGD | Adam


def optimiser_of(options: TrainOptions) -> Optimiser:
    """Return the optimiser that the options of training name."""
    momentum, decay = options.momentum, options.weight_decay
    if options.optimizer == "sgd":
        return SGD(momentum, decay, options.max_gradient_norm)
    return Adam(momentum, decay, options.optimizer == "adamw", options.max_gradient_norm)


@dataclass(frozen=True)
class Penalty:
    """The terms that a method adds to the gradient: ``mu (w - anchor) + sum_j c_j
    t_j``, for ``terms`` (t_j, c_j); each list has one tensor per tensor of w.
    """

    mu: float = 0.0
    anchor: Tensors = field(default_factory=list)
    terms: Terms = ()

    def sum(self) -> Terms:
        """Return all terms but ``mu w``."""
        return [*([(self.anchor, -self.mu)] if self.mu else []), *self.terms]


NO_PENALTY = Penalty()


@dataclass(frozen=True)
class Descent:
    """A step of the optimiser on the loss plus a penalty with the gradient ``decay w +
    sum_j c_j t_j``: FedAvg and the methods that add terms (:func:`descent`).

    ``state``: ``w``, ``velocity``, ``rate``, and ``term-0``, ``term-1``, ... with the
    coefficients c_j.
    """

    by_cohort = True
    sgd: Optimiser
    decay: float = 0.0
    coefficients: tuple[float, ...] = ()

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        loss, gradients = gradient(state["w"])
        terms = [(state[f"term-{j}"], c) for j, c in enumerate(self.coefficients)]
        self.sgd(state["w"], gradients, state["velocity"], state["rate"], self.decay, terms)
        return loss


def descent(
    sgd: Optimiser, w: Tensors, rate: float, penalty: Penalty = NO_PENALTY
) -> tuple[Descent, State]:
    """Return the step of an optimiser at the parameters ``w``, and its state."""
    terms, coefficients = zip(*penalty.sum(), strict=True) if penalty.sum() else ((), ())
    state: dict[str, Any] = {f"term-{j}": tuple(t) for j, t in enumerate(terms)}
    state |= {"w": w, "velocity": sgd.velocity(w), "rate": rate}
    return Descent(sgd, penalty.mu, coefficients), state


def direction(gradients: Tensors, scale: Number, max_norm: float, terms: Terms) -> Tensors:
    """Return ``scale gradients``, shortened to the norm ``max_norm`` unless it is 0,
    plus ``terms``.
    """
    if isinstance(scale, Tensor) or scale != 1:
        gradients = scaled(gradients, scale)
    if max_norm:
        squares = [g.square().flatten(_before.get()).sum(-1) for g in gradients]
        norm = torch.stack(squares).sum(0).sqrt()
        gradients = scaled(gradients, max_norm / norm.clamp(min=max_norm))
    for tensors, coefficient in terms:
        add(gradients, tensors, coefficient)
    return gradients


def add(tensors: Tensors, others: Tensors | tuple[Tensor, ...], coefficient: Number) -> None:
    """Add ``coefficient * others`` to ``tensors``."""
    if isinstance(coefficient, Tensor):
        torch._foreach_add_(tensors, scaled(others, coefficient))
    elif _before.get() and coefficient not in (0, 1):  # one rounding less, but not everywhere
        torch._foreach_add_(tensors, torch._foreach_mul(others, coefficient))
    elif coefficient:
        torch._foreach_add_(tensors, others, alpha=coefficient)


def along(number: Number, tensor: Tensor) -> Any:
    """Return a number in the form in which operations with ``tensor`` take it."""
    if not isinstance(number, Tensor) or not number.dim():
        return number
    return number.view(-1, *[1] * (tensor.dim() - 1))


def scaled(tensors: Tensors | tuple[Tensor, ...], number: Number) -> Tensors:
    """Return ``number tensors``."""
    if isinstance(number, Tensor) and number.dim():
        return [t * along(number, t) for t in tensors]
    return list(torch._foreach_mul(tensors, number))


def between(
    gradient: Gradient, tensors: Tensors, others: Tensors, weights: Sequence[Number]
) -> Tensors:
    """Return ``(1 - weight) tensors + weight others``, written to the tensors at which
    ``gradient`` is computed, if it has any.
    """
    if _before.get():
        moves = zip(tensors, others, weights, strict=True)
        return [a + along(weight, a) * (b - a) for a, b, weight in moves]
    place = getattr(gradient, "place", None) or [None] * len(tensors)
    return [
        torch.lerp(a, b, weight, out=out)
        for a, b, weight, out in zip(tensors, others, weights, place, strict=True)
    ]


def parted(tensors: Tensors, weights: Sequence[Number]) -> tuple[Tensors, Tensors]:
    """Return ``(1 - weight) tensors`` and ``weight tensors``; the former takes the
    place of ``tensors``.
    """
    if isinstance(weights[0], Tensor):
        shares = [along(weight, t) for t, weight in zip(tensors, weights, strict=True)]
        second = [t * share for t, share in zip(tensors, shares, strict=True)]
        return [t.mul_(1 - share) for t, share in zip(tensors, shares, strict=True)], second
    numbers = [float(weight) for weight in weights]
    second = list(torch._foreach_mul(tensors, numbers))
    torch._foreach_mul_(tensors, [1 - number for number in numbers])
    return tensors, second


def inner(*pairs: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
    """Return the inner products (pairs,) of pairs of lists of tensors, each list taken
    as one vector; (pairs, clients) in a cohort.
    """
    each = [(a, b) for pair in pairs for a, b in zip(*pair, strict=True)]
    if not (axes := _before.get()):
        dots = torch.stack([torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in each])
    else:
        dots = torch.stack([(a * b).flatten(axes).sum(-1) for a, b in each])
    return dots.view(len(pairs), len(each) // len(pairs), *dots.shape[1:]).sum(1)
