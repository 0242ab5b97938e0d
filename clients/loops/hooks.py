"""How a method's terms get into a training loop of your own: hooks on the steps of
torch's optimisers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from logging import WARNING
from typing import Any

import torch
from flwr.common import log
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fedapps.clients.steps.sgd import Penalty

#: Takes the parameters of the module that the optimiser is about to move, by name, and
#: the options of their group ("lr", "momentum", ...), with the optimiser's class as
#: "optimiser".
Change = Callable[[Mapping[str, nn.Parameter], Mapping[str, Any]], None]


@dataclass(frozen=True)
class Adding:
    """A change that adds a penalty to the gradients; ``place``: the position of a
    parameter in the penalty's lists.
    """

    penalty: Penalty
    place: Mapping[str, int]

    def __call__(self, parameters: Mapping[str, nn.Parameter], options: Mapping[str, Any]) -> None:
        """Add the gradient of the penalty."""
        for name, p in parameters.items():
            place = self.place[name]
            if self.penalty.mu:
                add(p, p.detach() - self.penalty.anchor[place].to(p), self.penalty.mu)
            for tensors, coefficient in self.penalty.terms:
                add(p, tensors[place], coefficient)

    def value(self, parameters: Mapping[str, nn.Parameter]) -> Tensor:
        """Return the penalty, which a line search needs beside its gradient."""
        total = torch.zeros(())
        for name, p in parameters.items():
            now, place = p.detach(), self.place[name]
            if self.penalty.mu:
                away = now - self.penalty.anchor[place].to(p)
                total = total.to(p) + 0.5 * self.penalty.mu * torch.sum(away * away)
            for tensors, coefficient in self.penalty.terms:
                total = total.to(p) + coefficient * torch.sum(tensors[place].to(p) * now)
        return total


def adding(penalty: Penalty, names: Sequence[str]) -> Adding | None:
    """Return what adds the penalty to the gradients of the parameters of these names,
    ``None`` if it is 0.
    """
    return Adding(penalty, {name: i for i, name in enumerate(names)}) if penalty.sum() else None


class Steps:
    """Calls ``change`` before the parameters of ``module`` that have a gradient move.

    An optimiser that is passed a closure computes the gradients inside its step, as in
    PyTorch Lightning: the change is then made after the closure. Raises ``ValueError``
    where a change would be lost, or made twice.
    """

    def __init__(self, module: nn.Module, change: Change) -> None:
        self.names = {id(p): name for name, p in module.named_parameters()}
        self.change = change
        self.count = 0  # changes made
        self.inside: Optimizer | None = None  # whose step has begun

    def before(
        self, optimiser: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Change the gradients, or have the closure change them (a hook of torch)."""
        if not any(
            id(p) in self.names for group in optimiser.param_groups for p in group["params"]
        ):
            return None
        name = type(optimiser).__name__
        if self.inside not in (None, optimiser):
            raise ValueError(
                f"{type(self.inside).__name__} calls the step of another optimiser ({name}): it "
                "would get the method's terms twice: use a plain optimiser"
            )
        self.inside = optimiser
        if getattr(optimiser, "grad_scale", None) is not None:
            raise ValueError(
                f"the gradients are still scaled when {name} steps (torch's GradScaler with a "
                "fused optimiser), so the method's terms cannot be added: use fused=False"
            )
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self.make(optimiser)
            return None
        closed = self.closed(optimiser, closure)
        if len(args) > 1:
            return (args[0], closed, *args[2:]), kwargs
        return args, {**kwargs, "closure": closed}

    def after(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        """Note that a step has ended (a hook of torch)."""
        if optimiser is self.inside:
            self.inside = None

    def closed(self, optimiser: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure with the change after it.

        LBFGS calls it several times in a step and compares the losses, so the penalty
        is added to them. Raises ``ValueError`` for a change that is no penalty: it must
        be made once in a step.
        """
        calls, value = 0, getattr(self.change, "value", None)
        several = isinstance(optimiser, torch.optim.LBFGS)

        def changed() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1 and not (several and value):
                name = type(optimiser).__name__
                raise ValueError(
                    f"{name} takes several gradients in one step, but this method needs one "
                    "gradient per step: use SGD or Adam"
                )
            loss = closure()
            found = self.make(optimiser)
            return loss + value(found) if several and value and loss is not None else loss

        return changed

    def make(self, optimiser: Optimizer) -> dict[str, nn.Parameter]:
        """Change the gradients that the optimiser is about to use; return the
        parameters by name.
        """
        every: dict[str, nn.Parameter] = {}
        for group in optimiser.param_groups:
            found = {
                self.names[id(p)]: p
                for p in group["params"]
                if id(p) in self.names and p.grad is not None
            }
            if found:
                self.count += 1
                self.change(found, {**group, "optimiser": type(optimiser)})
            every |= found
        return every


@contextmanager
def before_steps(module: nn.Module, change: Change | None) -> Iterator[None]:
    """Call ``change`` before every step that an optimiser of torch takes on parameters
    of ``module`` that have a gradient.

    Raises ``ValueError`` at the end if there was no such step.
    """
    if change is None:
        yield
        return
    steps = Steps(module, change)
    hooks = (
        register_optimizer_step_pre_hook(steps.before),
        register_optimizer_step_post_hook(steps.after),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    if not steps.count:
        raise ValueError(
            "the function that trains took no step with an optimiser of torch on the module that "
            "it was given"
        )


def add(parameter: nn.Parameter, term: Tensor, factor: float = 1.0) -> None:
    """Add a multiple of ``term`` to the gradient of a parameter, wherever it is."""
    assert parameter.grad is not None
    parameter.grad.add_(term.to(parameter.grad), alpha=factor)


@cache
def once(text: str) -> None:
    """Log a warning, once in a process."""
    log(WARNING, text)
