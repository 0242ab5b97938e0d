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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from algorithms.common.seeds import derived_seed
from algorithms.common.wire import fields, read
from clients.base.adapter import client_id
from clients.base.store import MessageStore, Store

Named = dict[str, Tensor]
#: (the parameters of the module that the optimiser is about to move, by name; its
#: learning rate)
Change = Callable[[Mapping[str, nn.Parameter], float], None]


class Loop:
    """FedAvg, and the base of the other methods. ``model`` is what is to be trained, or
    in evaluation, scored.

    ``build`` makes the module, ``message`` and ``context`` are what Flower passes to
    your function. ``store`` holds what the client keeps between rounds, by default in
    ``context.state``.
    """

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
        self.client = client_id(context)
        self.store = store if store is not None else MessageStore(context.state)
        self.sent: Named = {
            name: torch.from_numpy(read(array).copy()) for name, array in sent.items()
        }
        self.model = self.fresh("model")
        self.load(self.sent)
        if message.metadata.message_type.partition(".")[0] == MessageType.EVALUATE:
            self.take_own()

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train ``model`` with ``function(model, loader, epochs, *args, **kwargs)``;
        return what it returns.
        """
        return self.call(function, self.model, loader, epochs, args, kwargs)

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

    def load(self, sent: Named) -> None:
        """Write what was sent into the module."""
        self.model.load_state_dict(sent)

    def take_own(self) -> None:
        """Turn ``model`` into what this client is scored with; for methods without a
        personal model, the one that was sent.
        """

    def arrays(self) -> Named:
        """Return the arrays of the reply."""
        return self.state()

    def call(
        self,
        function: Callable[..., Any],
        module: nn.Module,
        loader: Any,
        epochs: int,
        args: Any,
        kwargs: Any,
        change: Change | None = None,
    ) -> Any:
        """Call ``function`` with torch's generator seeded and ``change`` before every
        step of an optimiser.
        """
        seed = derived_seed(
            int(self.config.get("seed", 0)),
            "loop",
            self.client,
            int(self.config.get("server-round", 1)),
        )
        with torch.random.fork_rng(), before_steps(module, change):
            torch.manual_seed(seed)
            return function(module, loader, epochs, *args, **kwargs)

    def state(self) -> Named:
        """Return copies of the module's parameters and buffers."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def fresh(self, purpose: str, own: bool = False) -> nn.Module:
        """Return a newly built module: of this client alone if ``own``, else the same
        for all clients.
        """
        seed = int(self.config.get("seed", 0))
        with torch.random.fork_rng():
            torch.manual_seed(
                derived_seed(seed, purpose, self.client) if own else derived_seed(seed, purpose)
            )
            return self.build()

    def kept(self, name: str, like: Mapping[str, Tensor], before: bool) -> Named | None:
        """Return what was saved under ``name``, named as ``like``; ``None`` if nothing
        was. ``before``: in earlier rounds only.
        """
        arrays = self.store.load(name, self.config, before)
        if arrays is None:
            return None
        if [array.shape for array in arrays] != [tuple(tensor.shape) for tensor in like.values()]:
            raise ValueError(
                f"client {self.client} keeps {name!r} of another architecture: begin with an empty "
                "store"
            )
        return {key: torch.from_numpy(array) for key, array in zip(like, arrays, strict=True)}

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Save tensors under ``name``; raises ``ValueError`` if one is not finite,
        since it would spoil all later rounds.
        """
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise ValueError("local training diverged: lower the learning rate")
        self.store.save(
            name, [tensor.detach().cpu().numpy() for tensor in tensors.values()], self.config
        )


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
