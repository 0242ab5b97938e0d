"""Local steps, said once a method and run one by one; ``clients.base.compiled`` runs
the same ones several at a time.

A step is a function of tensors, which it changes in place:

    step(gradient, state, numbers) -> mean loss of the mini-batch

``gradient(at)`` is the loss of the step's mini-batch and its gradient at the parameters
``at``. ``state`` holds lists of tensors by name: those that training changes
(parameters, momentum) and those that it only reads (the received model). ``numbers``
are what changes from round to round or from step to step (learning rate, mixing
weights): floats, or tensors where the step is compiled, so that one graph serves all of
them. What stays the same all through a run are fields of the step, a frozen dataclass.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

Tensors = list[Tensor]
State = Mapping[str, Tensors]
Number = float | Tensor
Numbers = Mapping[str, Number | Sequence[float]]
Gradient = Callable[[Tensors], tuple[Tensor, Tensors]]
Terms = Sequence[tuple[Tensors, Number]]
Epochs = Generator[tuple[Tensor, Tensor], None, None]


class Step(Protocol):
    """See the module docstring."""

    def __call__(self, gradient: Gradient, state: State, numbers: Numbers) -> Tensor:
        """Change ``state`` in place; return the mean loss, without gradient."""
        ...


@dataclass(frozen=True)
class Problem:
    """What a client minimises over mini-batches (x, y): ``surrogate(loss(x, y))``,
    where ``loss`` is a mean at ``module``'s parameters.

    ``criterion``: the loss is ``criterion(module(x), y)``; ``None``: it is something
    else, which is not compiled.
    """

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    surrogate: Callable[[Tensor], Tensor]
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None

    @cached_property
    def moving(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


def no_surrogate(loss: Tensor) -> Tensor:
    """Return the loss itself."""
    return loss


@dataclass(frozen=True)
class SGD:
    """SGD with momentum on lists of tensors: ``v <- momentum v + d``, ``p <- p - rate
    v``.

    One fused operation where this PyTorch has it, else some over all tensors: the same
    numbers up to rounding.
    """

    momentum: float
    weight_decay: float

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
        c_j t_j`` for ``terms`` (t_j, c_j), in place.

        Overwrites ``gradients`` if there are terms or a scale.
        """
        if isinstance(scale, Tensor) or scale != 1:
            gradients = list(torch._foreach_mul(gradients, scale))
        for tensors, coefficient in terms:
            add(gradients, tensors, coefficient)
        decay = self.weight_decay + decay
        numbers = not isinstance(rate, Tensor) and not isinstance(decay, Tensor)
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


def add(tensors: Tensors, others: Tensors | tuple[Tensor, ...], coefficient: Number) -> None:
    """Add ``coefficient * others`` to ``tensors``."""
    if isinstance(coefficient, Tensor):
        torch._foreach_add_(tensors, torch._foreach_mul(others, coefficient))
    elif coefficient:
        torch._foreach_add_(tensors, others, alpha=coefficient)


def between(
    gradient: Gradient, tensors: Tensors, others: Tensors, weights: Sequence[Number]
) -> Tensors:
    """Return ``(1 - weight) tensors + weight others``, written where ``gradient`` is
    taken if it says where.
    """
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
        second = [tensor * weight for tensor, weight in zip(tensors, weights, strict=True)]
        return [
            tensor.mul_(1 - weight) for tensor, weight in zip(tensors, weights, strict=True)
        ], second
    numbers = [float(weight) for weight in weights]
    second = list(torch._foreach_mul(tensors, numbers))
    torch._foreach_mul_(tensors, [1 - number for number in numbers])
    return tensors, second


def inner(*pairs: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
    """Return the inner products (pairs,) of pairs of lists of tensors, each list taken
    as one vector.
    """
    dots = [
        torch.dot(a.reshape(-1), b.reshape(-1))
        for tensors, others in pairs
        for a, b in zip(tensors, others, strict=True)
    ]
    return torch.stack(dots).view(len(pairs), -1).sum(1)


@dataclass(frozen=True)
class Descent:
    """A step of SGD on the loss plus a penalty with the gradient ``decay w + sum_j c_j
    t_j``: FedAvg and the methods that add terms.

    ``state``: ``w``, ``velocity``, and ``term-0``, ``term-1``, ... with the
    coefficients c_j. ``numbers``: ``rate``.
    """

    sgd: SGD
    decay: float = 0.0
    coefficients: tuple[float, ...] = ()

    def __call__(self, gradient: Gradient, state: State, numbers: Numbers) -> Tensor:
        """Take the step."""
        loss, gradients = gradient(state["w"])
        terms = [(state[f"term-{j}"], c) for j, c in enumerate(self.coefficients)]
        self.sgd(state["w"], gradients, state["velocity"], one(numbers["rate"]), self.decay, terms)
        return loss


def one(number: Number | Sequence[float]) -> Number:
    """Return a number that is not a list of numbers."""
    assert isinstance(number, int | float | Tensor)
    return number


def in_batches(epochs: Epochs, batch_size: int) -> Epochs:
    """Yield the mini-batches (x, y) of epochs (x, y); the last of an epoch may be
    smaller.
    """
    for x, y in epochs:
        yield from zip(x.split(batch_size), y.split(batch_size), strict=True)


class Runner(Protocol):
    """What takes steps: eagerly or compiled."""

    def run(
        self,
        problem: Problem,
        step: Step,
        state: State,
        constants: State,
        numbers: Callable[[int], Numbers],
        epochs: Epochs,
        batch_size: int,
    ) -> float:
        """Go through all mini-batches of the epochs (x, y); return the sum of the
        losses of all samples.

        ``state``: what the steps change, in place; ``constants``: what they read.
        ``numbers``: of the i-th step, asked for in this order.
        """
        ...


class Eager:
    """Runs the steps of a problem one by one; called by them, it is the gradient at the
    current mini-batch.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.parameters = list(problem.moving.values())
        #: The module's parameters as tensors. Gradients are taken there: a step that
        #: writes its point there saves a copy.
        self.place = [p.detach() for p in self.parameters]
        self.batch: tuple[Tensor, Tensor] | None = None

    def step(self, step: Step, state: State, numbers: Numbers, x: Tensor, y: Tensor) -> Tensor:
        """Take one step with the mini-batch (x, y); return its mean loss."""
        self.batch = x, y
        return step(self, state, numbers)

    def __call__(self, at: Tensors) -> tuple[Tensor, Tensors]:
        """Return loss and gradient at the parameters ``at``."""
        assert self.batch is not None
        if at[0].data_ptr() != self.place[0].data_ptr():
            torch._foreach_copy_(self.place, at)
        loss = self.problem.loss(*self.batch)
        return loss.detach(), list(
            torch.autograd.grad(self.problem.surrogate(loss), self.parameters)
        )

    @classmethod
    def run(
        cls,
        problem: Problem,
        step: Step,
        state: State,
        constants: State,
        numbers: Callable[[int], Numbers],
        epochs: Epochs,
        batch_size: int,
    ) -> float:
        """As ``Runner.run``."""
        total, state, steps = None, {**state, **constants}, cls(problem)
        for done, (x, y) in enumerate(in_batches(epochs, batch_size)):
            loss = steps.step(step, state, numbers(done), x, y) * len(y)
            total = loss if total is None else total.add_(loss)
        # read once: reading it in every step would wait for the device
        return 0.0 if total is None else float(total)
