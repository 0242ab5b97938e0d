"""The base: FedAvg around a training loop of your own.

    # builds the module, with the model that was sent
    method = ScaffoldLoop(Net, message, context)
    # calls train(module, loader, epochs, ...)
    loss = method.train(train, loader, epochs, learning_rate, device)
    return method.reply({"train_loss": loss, "num-examples": len(loader.dataset)})

``train`` remains as it is, with its own loss, optimiser and batches; its first three
arguments are the module, the loader and the number of epochs. What a method adds to the
gradients is added right before an optimiser of torch steps, so once a step, however
many backward passes it takes. torch's random numbers (shuffling, dropout) follow from
seed, client and round: the same seed, the same model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import log
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from algorithms.common.seeds import derived_seed
from algorithms.common.sent import Reads, RoundFacts
from algorithms.common.wire import fields, read
from clients.base.adapter import client_id
from clients.base.data import ClientData, Split
from clients.base.options import Config, TrainOptions, acknowledged
from clients.base.store import MessageStore, Store
from clients.fedavg import FedAvgClient
from clients.steps.sgd import Penalty

Named = dict[str, Tensor]
#: Takes the parameters of the module that the optimiser is about to move, by name, and
#: the options of their group ("lr", "momentum", ...), with the optimiser's class as
#: "optimiser".
Change = Callable[[Mapping[str, nn.Parameter], Mapping[str, Any]], None]


class Around(FedAvgClient):
    """Mixin: a method's client whose training is a function of the user's. What the
    method sends, adds to gradients and keeps remains as the client's class has it.
    """

    loop: "Loop"

    def train(self, config: Config) -> Any:
        """Let the user's function train ``self.model`` for ``local-epochs``, with the
        method's penalty; return what it returns.
        """
        named = self.loop.parameters()
        penalty = self.penalty([p.detach() for p in named.values()], config)
        change = adding(penalty, list(named))
        return self.loop.call(self.model, TrainOptions.from_config(config).local_epochs, change)

    def before(self, config: Config) -> dict[str, float]:
        """Return nothing: the client has no samples."""
        return {}

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether the server sent it."""
        return [name in self.loop.sent for name in self.model.state_dict()]


@cache
def around(kind: type[FedAvgClient]) -> type[Around]:
    """Return the class ``kind`` around a function of the user's."""
    return type(f"{kind.__name__}Around", (Around, kind), {"__doc__": Around.__doc__})


class Finite:
    """A store that refuses arrays which are not finite: they would spoil all later
    rounds.
    """

    def __init__(self, store: Store) -> None:
        self.load = store.load
        self._save = store.save

    def save(self, name: str, arrays: Sequence[NDArray[Any]], config: Config) -> None:
        """Save arrays; raises ``ValueError`` if a number is not finite."""
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("local training diverged: lower the learning rate")
        self._save(name, arrays, config)


class Loop:
    """FedAvg, and the base of the other methods: what the method's client does, with a
    function of yours for its training. ``model`` is what is to be trained, or in
    evaluation, scored.

    ``build`` makes the module, ``message`` and ``context`` are what Flower passes to
    your function. ``store`` holds what the client keeps between rounds, by default in
    ``context.state``.
    """

    #: The method's client.
    kind: type[FedAvgClient] = FedAvgClient
    #: What the server must send for the method's terms, where a default would hide that
    #: it does not.
    needs: Reads = ()

    def __init__(
        self,
        build: Callable[[], nn.Module],
        message: Message,
        context: Context,
        store: Store | None = None,
    ) -> None:
        records = list(message.content.values())
        (sent,) = (record for record in records if isinstance(record, ArrayRecord))
        (config,) = (record for record in records if isinstance(record, ConfigRecord))
        self.build, self.message = build, message
        self.config: dict[str, Any] = dict(config)
        self.sent: Named = {
            name: torch.from_numpy(read(array).copy()) for name, array in sent.items()
        }
        none = Split(torch.empty(0), torch.empty(0))
        store = Finite(store if store is not None else MessageStore(context.state))
        number = client_id(context)
        self.model = self.fresh(derived_seed(RoundFacts.from_config(self.config).seed, "model"))
        #: Typed as any client: a method's loop calls what its own class has.
        self.client: Any = around(self.kind)(
            self.fresh, ClientData(none, none, none), number, store, self.model
        )
        self.client.loop = self
        self.load()
        if self.evaluates():
            self.take_own()

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train ``model`` with ``function(model, loader, epochs, *args, **kwargs)``;
        return what it returns. Methods that call it twice return what is of the model
        that is sent.
        """
        self.function: Callable[[nn.Module, Any, int], Any] = lambda module, loader, epochs: (
            function(module, loader, epochs, *args, **kwargs)
        )
        self.loader = loader
        keys = [key for sent in self.needs for key in sent.keys() if key not in self.config]  # noqa: SIM118 - a method
        if keys:
            name = type(self).__name__
            once(
                f"{name}: the server does not send {', '.join(keys)}, so this client trains "
                f"without the method's terms: use strategies.{name.removesuffix('Loop')}"
            )
        return self.fit(epochs)

    def reply(self, metrics: Mapping[str, Any]) -> Message:
        """Return the reply to the message. ``metrics``: numbers and lists of numbers,
        among them ``num-examples``.
        """
        arrays = {
            name: Array(*fields(tensor.detach().cpu().numpy()))
            for name, tensor in self.arrays().items()
        }
        content = RecordDict(
            {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(dict(metrics))}
        )
        if said := acknowledged(self.kind):
            content["info"] = ConfigRecord(dict(said))
        return Message(content=content, reply_to=self.message)

    # --- parts for the methods --------------------------------------------------------

    def load(self) -> None:
        """Write what was sent into the module."""
        self.model.load_state_dict(self.sent)

    def take_own(self) -> None:
        """Turn ``model`` into what this client is scored with; for methods without a
        personal model, the one that was sent.
        """

    def fit(self, epochs: int) -> Any:
        """Train as the method's client does; ``model`` is then the one that is sent."""
        received = [t.detach().cpu().numpy().copy() for t in self.arrays().values()]
        reply, _, metrics = self.client.fit(received, {**self.config, "local-epochs": epochs})
        trained = {
            name: torch.from_numpy(array) for name, array in zip(self.arrays(), reply, strict=True)
        }
        self.model.load_state_dict({**self.model.state_dict(), **trained})
        return metrics["loss"]

    def arrays(self) -> Named:
        """Return the arrays of the reply: of the model those that the server sent."""
        return {name: t for name, t in self.model.state_dict().items() if name in self.sent}

    def call(
        self, module: nn.Module, epochs: int, change: Change | None, loader: Any = None
    ) -> Any:
        """Call the user's function with torch's generator seeded and ``change`` before
        every step of an optimiser. ``loader``: in place of the user's.
        """
        for parameter in module.parameters():
            parameter.grad = None  # else an optimiser would move what is frozen now
        with torch.random.fork_rng(), before_steps(module, change):
            torch.manual_seed(derived_seed(*self.client.draw("loop", self.config)))
            return self.function(module, self.loader if loader is None else loader, epochs)

    def evaluates(self) -> bool:
        """Return whether the message asks for an evaluation."""
        kind = self.message.metadata.message_type.partition(".")[0]
        return bool(kind == MessageType.EVALUATE)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def fresh(self, seed: int) -> nn.Module:
        """Return a newly built module, drawn by the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build()


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
