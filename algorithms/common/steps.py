"""A local step as a function, and the loop that takes steps one by one.

Plain training is the usual loop (``clients.steps.plain``):

    for x, y in batches:
        g = gradient of the mean loss of (x, y) at w
        v = momentum * v + g + weight_decay * w
        w = w - rate * v

Methods differ in what they do with the gradient. This part is therefore a function, the
*step*. It changes tensors in place (``clients.steps.sgd.Descent`` is the step above):

    step(gradient, state) -> mean loss of the mini-batch

``gradient(at)`` returns the loss of the step's mini-batch and its gradient at the
parameters ``at``. ``state`` is what a step works on, by name: lists of tensors that it
changes (``w``, ``v``), tuples of tensors that it only reads (the received model), and
numbers (the rate; from step to step other mixing weights). Numbers are floats or lists
of floats; in a compiled step they are tensors, so that one graph serves all values.
Values that are constant during a run are fields of the step, a frozen dataclass.

``Eager.run`` is the loop for any step; ``clients.steps.compiled`` takes several of the
same steps at a time.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedapps.algorithms.common.modules import trains_alone

Tensors = list[Tensor]
Gradient = Callable[[Tensors], tuple[Tensor, Tensors]]
State = Mapping[str, Any]
Step = Callable[[Gradient, State], Tensor]
Epochs = Generator[tuple[Tensor, Tensor], None, None]


Moving = Callable[[int], Mapping[str, Any]]


def tensors_of(state: State, kind: type[list[Any]] | type[tuple[Any, ...]]) -> dict[str, Tensors]:
    """Return the tensors of a state that steps change (``kind`` list), or only read
    (tuple).
    """
    return {
        name: list(value)
        for name, value in state.items()
        if isinstance(value, kind) and all(isinstance(t, Tensor) for t in value)
    }


def numbers_of(state: State) -> dict[str, Any]:
    """Return the numbers of a state."""
    return {name: v for name, v in state.items() if not isinstance(v, list | tuple)}


def no_numbers(step: int) -> Mapping[str, Any]:
    """Return none: all numbers are the same in all steps."""
    return {}


def in_batches(epochs: Epochs, batch_size: int, module: nn.Module) -> Epochs:
    """Yield the mini-batches (x, y) of epochs (x, y), of :func:`batch_sizes`."""
    with closing(epochs):  # from Python 3.12 on, a loop that is left does not close it
        for x, y in epochs:
            sizes = batch_sizes(x, batch_size, module)
            yield from zip(x.split(sizes), y.split(sizes), strict=True)


def batch_sizes(x: Tensor, batch_size: int, module: nn.Module) -> list[int]:
    """Return the sizes of the mini-batches of samples ``x`` (n, ...); the last may be
    smaller. A last single sample joins the batch before it if the module cannot train
    on one, as with batch normalisation of vectors.
    """
    whole, rest = divmod(len(x), batch_size)
    if rest == 1 and whole and not trains_alone(module, x):
        return [*[batch_size] * (whole - 1), batch_size + 1]
    return [*[batch_size] * whole, *([rest] if rest else [])]


def no_surrogate(loss: Tensor) -> Tensor:
    """Return the loss itself."""
    return loss


@dataclass(frozen=True)
class Problem:
    """What a client minimises over mini-batches (x, y): ``surrogate(loss(x, y))``,
    where ``loss`` is a mean at ``module``'s parameters.

    ``criterion``: the loss is ``criterion(module(x), y)``; ``None``: any other loss,
    which is not compiled. ``by_sample``: it is a mean over samples, of which each has
    its own loss.
    """

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    surrogate: Callable[[Tensor], Tensor] = no_surrogate
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None
    by_sample: bool = False

    @cached_property
    def moving(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


class Eager:
    """Runs the steps of a problem one by one. The steps call it for the gradient at the
    current mini-batch.
    """

    at_once = 1

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.parameters = list(problem.moving.values())
        #: The module's parameters as tensors. Gradients are computed there, so a step
        #: that writes its point there saves a copy.
        self.place = [p.detach() for p in self.parameters]
        self.batch: tuple[Tensor, Tensor] | None = None
        #: Of the step: the parameters without a gradient, and the tensors of the state
        #: that belong to each, with their values before.
        self.unused: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.state: State = {}
        self.first = True  # of the step's gradients

    def step(self, step: Step, state: State, x: Tensor, y: Tensor) -> Tensor:
        """Take one step with the mini-batch (x, y); return its mean loss. A parameter
        that the loss does not depend on stays, as an optimiser of torch leaves it.
        """
        self.batch, self.state, self.unused, self.first = (x, y), state, {}, True
        loss = step(self, state)
        for kept in self.unused.values():
            for tensor, before in kept:
                tensor.copy_(before)
        return loss

    def __call__(self, at: Tensors) -> tuple[Tensor, Tensors]:
        """Return loss and gradient at the parameters ``at``."""
        assert self.batch is not None
        if at[0].data_ptr() != self.place[0].data_ptr():
            torch._foreach_copy_(self.place, at)
        loss = self.problem.loss(*self.batch)
        found = torch.autograd.grad(
            self.problem.surrogate(loss), self.parameters, allow_unused=True
        )
        missing = [i for i, gradient in enumerate(found) if gradient is None]
        if self.first:  # before the step changes anything
            self.unused, self.first = {i: self._belonging(i) for i in missing}, False
        elif self.unused:
            self.unused = {i: self.unused[i] for i in missing if i in self.unused}
        return loss.detach(), [
            torch.zeros_like(p) if g is None else g for p, g in zip(self.place, found, strict=True)
        ]

    def _belonging(self, place: int) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors of the state that belong to a parameter, and copies."""
        count = len(self.place)
        lists = (ts[: len(ts) - len(ts) % count] for ts in tensors_of(self.state, list).values())
        return [(t, t.clone()) for ts in lists for t in ts[place::count]]

    @classmethod
    def run(
        cls,
        problem: Problem,
        step: Step,
        state: State,
        epochs: Epochs,
        batch_size: int,
        moving: Moving = no_numbers,
    ) -> tuple[float, int]:
        """As ``Runner.run``."""
        total, seen, steps = None, 0, cls(problem)
        for done, (x, y) in enumerate(in_batches(epochs, batch_size, problem.module)):
            loss = steps.step(step, {**state, **moving(done)}, x, y) * len(y)
            total = loss if total is None else total.add_(loss)
            seen += len(y)
        # read once: reading it in every step would wait for the device
        return (0.0 if total is None else float(total)), seen


class Runner(Protocol):
    """Runs steps: one by one, compiled, or by the cohort (``clients.steps.cohorts``).
    ``at_once``: how many it takes at a time.
    """

    at_once: int

    def run(
        self,
        problem: Problem,
        step: Step,
        state: State,
        epochs: Epochs,
        batch_size: int,
        moving: Moving = no_numbers,
    ) -> tuple[float, int]:
        """Go through all mini-batches of the epochs (x, y); return the sum of the
        losses of all samples, and their number.

        ``moving(i)``: numbers of the state that are others in the i-th step, called in
        order.
        """
        ...
