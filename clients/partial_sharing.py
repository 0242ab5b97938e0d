"""Clients that share one part of their model and keep the other: FedPer and LG-FedAvg, and FedRep.

The part that is kept starts as the run's model does, survives between rounds in the client's store and never leaves it. A model says
which of its parameters are its head: ``model.head``, prefixes of their names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clients.base.training import Arrays, Config, get_arrays, set_arrays
from clients.fedavg import FedAvgClient

NAME = "private"


class PartialClient(FedAvgClient):
    """Client half of FedPer and LG-FedAvg: the configuration says which part is shared."""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the shared part after training; keep the other."""
        self.assemble(parameters, config, before=True)
        loss = self.train_parts(config)
        arrays, shared = get_arrays(self.model), self.shared(config)
        self.store.save(NAME, [a for a, travels in zip(arrays, shared, strict=True) if not travels], config)
        return [a for a, travels in zip(arrays, shared, strict=True) if travels], len(self.data.train), {"loss": loss}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Score the shared part together with the client's own."""
        self.assemble(parameters, config, before=False)
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), scores

    def train_parts(self, config: Config) -> float:
        """Train the whole model; return the mean loss."""
        return self.train(config)

    def assemble(self, received: Arrays, config: Config, before: bool) -> None:
        """Fill the model with what was received and what is kept. Raises ``ValueError`` where they do not make up this model."""
        shared = self.shared(config)
        own = self.store.load(NAME, config, before)
        if own is None:
            fresh = self.fresh_arrays("model", config, own=False)
            own = [a for a, travels in zip(fresh, shared, strict=True) if not travels]
        wanted = [tuple(t.shape) for t, travels in zip(self.model.state_dict().values(), shared, strict=True) if not travels]
        if len(received) != sum(shared) or [a.shape for a in own] != wanted:
            raise ValueError(
                f"client {self.client_id}: {len(received)} arrays received and {len(own)} kept, but the model shares {sum(shared)} of "
                f"{len(shared)}, or has other shapes: of another architecture? Use another results folder"
            )
        parts = {True: iter(received), False: iter(own)}
        set_arrays(self.model, [next(parts[travels]) for travels in shared])

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether it is shared."""
        return [name.startswith(self.head()) == (config["share"] == "head") for name in self.model.state_dict()]

    def head(self) -> tuple[str, ...]:
        """Return the prefixes of the head's names. Raises ``ValueError`` for a model that does not say."""
        head: Any = getattr(self.model, "head", None)
        if not head:
            raise ValueError(f"{type(self.model).__name__} has no head: give it an attribute head, prefixes of parameter names")
        return tuple(head)


class FedRepClient(PartialClient):
    """Client half of FedRep: the head first, the body fixed; then the body with that head."""

    def train_parts(self, config: Config) -> float:
        """Train both parts in turn; return the mean loss of the body's epochs."""
        with self.only(head=True):
            self.train({**config, "local-epochs": int(config["fedrep-head-epochs"]) or int(config["local-epochs"])})
        with self.only(head=False):
            return self.train({**config, "local-epochs": config["fedrep-body-epochs"]})

    @contextmanager
    def only(self, head: bool) -> Iterator[None]:
        """Let training change one part only; the module may be shared by the clients of a process."""
        others = [p for name, p in self.model.named_parameters() if name.startswith(self.head()) != head and p.requires_grad]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)
