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
from functools import cache
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
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from algorithms.common.seeds import derived_seed
from algorithms.common.sent import RoundFacts
from algorithms.common.wire import fields, read
from clients.base.adapter import client_id
from clients.base.data import ClientData, Split
from clients.base.options import Config, TrainOptions
from clients.base.store import MessageStore, Store
from clients.fedavg import FedAvgClient
from clients.steps.sgd import Penalty

Named = dict[str, Tensor]
#: (the parameters of the module that the optimiser is about to move, by name; its
#: learning rate)
Change = Callable[[Mapping[str, nn.Parameter], float], None]


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


def adding(penalty: Penalty, names: Sequence[str]) -> Change | None:
    """Return what adds the penalty to the gradients of the parameters of these names,
    ``None`` if it is 0.
    """
    if not penalty.sum():
        return None
    place = {name: i for i, name in enumerate(names)}

    def change(parameters: Mapping[str, nn.Parameter], rate: float) -> None:
        for name, p in parameters.items():
            if penalty.mu:
                add(p, p.detach() - penalty.anchor[place[name]].to(p), penalty.mu)
            for tensors, coefficient in penalty.terms:
                add(p, tensors[place[name]], coefficient)

    return change


@contextmanager
def before_steps(module: nn.Module, change: Change | None) -> Iterator[None]:
    """Call ``change`` before every step that an optimiser of torch takes on parameters
    of ``module`` that have a gradient.

    Raises ``ValueError`` at the end if there was no such step.
    """
    if change is None:
        yield
        return
    names = {id(p): name for name, p in module.named_parameters()}
    steps = 0

    def hook(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal steps
        for group in optimiser.param_groups:
            found = {
                names[id(p)]: p for p in group["params"] if id(p) in names and p.grad is not None
            }
            if found:
                steps += 1
                change(found, float(group["lr"]))

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
    if not steps:
        raise ValueError(
            "the function that trains took no step with an optimiser of torch on the module that "
            "it was given"
        )


def add(parameter: nn.Parameter, term: Tensor, factor: float = 1.0) -> None:
    """Add a multiple of ``term`` to the gradient of a parameter, wherever it is."""
    assert parameter.grad is not None
    parameter.grad.add_(term.to(parameter.grad), alpha=factor)
