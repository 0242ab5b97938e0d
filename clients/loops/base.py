"""The base: FedAvg around a training loop of your own.

    # builds the module, with the model that was sent
    method = ScaffoldLoop(Net, message, context)
    # calls train(module, loader, epochs, ...)
    loss = method.train(train, loader, epochs, learning_rate, device)
    return method.reply({"train_loss": loss, "num-examples": len(loader.dataset)})

``train`` stays as it is, with its own loss, optimiser and batches. Its first three
arguments are the module, the loader and the number of epochs. The method's terms are
added to the gradients once per step of an optimiser of torch, right before it moves the
parameters (``clients.loops.hooks``). torch's random numbers (shuffling, dropout) follow
from seed, client and round: the same seed gives the same model.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

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

from fedapps.algorithms.common.seeds import derived_seed
from fedapps.algorithms.contract.sent import Reads, RoundFacts
from fedapps.algorithms.contract.wire import fields, read
from fedapps.clients.base.adapter import client_id
from fedapps.clients.base.data import ClientData, Split
from fedapps.clients.base.options import Config, TrainOptions, acknowledged
from fedapps.clients.base.store import MessageStore, Store, sound
from fedapps.clients.fedavg import FedAvgClient
from fedapps.clients.loops.hooks import Change, adding, before_steps, once

Named = dict[str, Tensor]


class Around(FedAvgClient):
    """Mixin: a method's client that trains with a function of the user's. The client's
    class still decides what is sent, kept and added to the gradients.
    """

    loop: "Loop"

    def train(self, config: Config) -> Any:
        """Let the user's function train ``self.model`` for ``local-epochs``, with the
        method's penalty; return what it returns.
        """
        named = self.loop.parameters()
        penalty = self.penalty([p.detach() for p in named.values()], config)
        change = adding(penalty, list(named))
        epochs = TrainOptions.from_config(config).local_epochs
        if isinstance(epochs, float):
            raise ValueError(f"epochs = {epochs}: a loop of one's own takes whole epochs")
        return self.loop.call(self.model, epochs, change)

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
    """A store that refuses arrays that are not sound: they would spoil all later
    rounds.
    """

    def __init__(self, store: Store) -> None:
        self.load = store.load
        self._save = store.save

    def save(self, name: str, arrays: Sequence[NDArray[Any]], config: Config) -> None:
        """Save arrays; raises ``ValueError`` if a number is not finite."""
        if not sound(self, name, arrays, config):
            raise ValueError("local training diverged: lower the learning rate")
        self._save(name, arrays, config)


class Loop:
    """FedAvg, and the base of the other methods: does what the method's client does,
    but trains with your function. ``model``: the module to train or, in an evaluation,
    to score.

    ``build`` makes the module. ``message`` and ``context`` are what Flower passes to
    your function. ``store`` keeps the client's state between rounds, by default in
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
        """Train ``model`` with ``function(model, loader, epochs, *args, **kwargs)`` and
        return its result. Methods that call it twice return the result for the model
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
                f"without the method's terms: use fedapps.strategies.{name.removesuffix('Loop')}"
            )
        return self.fit(epochs)

    def reply(self, metrics: Mapping[str, Any]) -> Message:
        """Return the reply to the message. ``metrics``: numbers and lists of numbers;
        ``num-examples`` must be one of them.
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
        """Turn ``model`` into the one that this client is scored with. Methods without
        a personal model keep the one that was sent.
        """

    def fit(self, epochs: int) -> Any:
        """Train as the method's client does; ``model`` is then the one to send."""
        received = [t.detach().cpu().numpy().copy() for t in self.arrays().values()]
        reply, _, metrics = self.client.fit(received, {**self.config, "local-epochs": epochs})
        trained = {
            name: torch.from_numpy(array) for name, array in zip(self.arrays(), reply, strict=True)
        }
        self.model.load_state_dict({**self.model.state_dict(), **trained})
        return metrics["loss"]

    def arrays(self) -> Named:
        """Return the arrays of the reply: those of the model that the server sent."""
        return {name: t for name, t in self.model.state_dict().items() if name in self.sent}

    def call(
        self, module: nn.Module, epochs: int, change: Change | None, loader: Any = None
    ) -> Any:
        """Call the user's function with torch's generator seeded, and ``change`` before
        every step of an optimiser. ``loader`` replaces the user's.
        """
        for parameter in module.parameters():
            parameter.grad = None  # otherwise an optimiser would move frozen parameters
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
