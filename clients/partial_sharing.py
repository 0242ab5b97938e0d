"""Clients that share one part of their model and keep the other private: FedPer,
LG-FedAvg, FedRep.

The private part starts as in the run's initial model, is stored on the client between
rounds and never leaves it. A model declares its head as ``model.head``, prefixes of
parameter names.

Sources: FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with
Personalization Layers", 2019, arXiv 1912.00818. LG-FedAvg: Liang, Liu, Ziyin, Allen,
Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally: Federated
Learning with Local and Global Representations", 2020, arXiv 2001.01523. FedRep:
Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, arXiv 2102.07078, Algorithm 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedapps.algorithms.contract.sent import FedRepSent, Reads, ShareSent
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays
from fedapps.clients.fedavg import FedAvgClient

NAME = "private"


def head_of(model: nn.Module) -> tuple[str, ...]:
    """Return the name prefixes of a model's head. Raises ``ValueError`` if the model
    does not declare them.

    They are the attribute ``chosen_head``, which holds the user's choice, else
    ``head``, else the layer named ``head``.
    """
    head: Any = getattr(model, "chosen_head", None) or getattr(model, "head", None)
    if not head:
        raise ValueError(
            f"{type(model).__name__} has no head: give it an attribute head, prefixes of parameter "
            "names"
        )
    return ("head.",) if isinstance(head, nn.Module) else tuple(head)


class PartialClient(FedAvgClient):
    """Client of FedPer and LG-FedAvg; the configuration (``share``) says which part is
    shared.
    """

    reads: Reads = (ShareSent,)
    differentiates_surrogate = True
    needs_all_steps = ""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained shared part; store the private one."""
        self.assemble(parameters, config, before=True)
        before = self.before(config)
        loss = self.train_parts(config)
        return self.keep(config), len(self.data.train), {"loss": loss, **before}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the shared part combined with the client's private part."""
        self.assemble(parameters, config, before=False)
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), scores

    def train_parts(self, config: Config) -> float:
        """Train the whole model; return the mean loss."""
        return self.train(config)

    def keep(self, config: Config) -> Arrays:
        """Store the private part of the model; return the shared one."""
        arrays, shared = get_arrays(self.model), self.shared(config)
        self.store.save(
            NAME, [a for a, travels in zip(arrays, shared, strict=True) if not travels], config
        )
        return [a for a, travels in zip(arrays, shared, strict=True) if travels]

    def assemble(self, received: Arrays, config: Config, before: bool) -> None:
        """Set the model to the received and the private part. Raises ``ValueError`` if
        they do not fit this model.
        """
        shared = self.shared(config)
        own = self.store.load(NAME, config, before)
        if own is None:
            fresh = self.fresh_arrays("model", config, own=False)
            own = [a for a, travels in zip(fresh, shared, strict=True) if not travels]
        wanted = [
            tuple(t.shape)
            for t, travels in zip(self.model.state_dict().values(), shared, strict=True)
            if not travels
        ]
        if len(received) != sum(shared) or [a.shape for a in own] != wanted:
            raise ValueError(
                f"client {self.client_id}: {len(received)} arrays received and {len(own)} kept, "
                f"but the model shares {sum(shared)} of "
                f"{len(shared)}, or has other shapes: if the architecture changed, use "
                "another results folder"
            )
        parts = {True: iter(received), False: iter(own)}
        set_arrays(self.model, [next(parts[travels]) for travels in shared])

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether it is shared."""
        share = ShareSent.from_config(config).share
        return [
            name.startswith(self.head()) == (share == "head") for name in self.model.state_dict()
        ]

    def head(self) -> tuple[str, ...]:
        """Return the name prefixes of the head's parameters. Raises ``ValueError`` if
        the model does not declare them.
        """
        return head_of(self.model)


class FedRepClient(PartialClient):
    """Client of FedRep: trains the head with the body fixed, then the body with the
    head fixed.
    """

    reads: Reads = (FedRepSent,)
    needs_all_steps = "its clients train the head first, and the body at the end of a round"

    def train_parts(self, config: Config) -> float:
        """Train the head, then the body; return the mean loss of the body's epochs."""
        sent = FedRepSent.from_config(config)
        epochs = sent.head_epochs
        with self.only(config, shared=False):
            self.train({**config, "local-epochs": epochs} if epochs else config)
        with self.only(config, shared=True):
            return self.train({**config, "local-epochs": sent.body_epochs})

    def train_alone(self, parameters: Arrays, config: Config) -> Arrays:
        """Fit the head to the received body, which stays as it is; store it."""
        self.assemble(parameters, config, before=True)
        with self.only(config, shared=False):
            self.train(config)
        self.keep(config)
        return []

    @contextmanager
    def only(self, config: Config, shared: bool) -> Iterator[None]:
        """Freeze all but the shared part, or all but the private one, within the
        context; the module may be shared by the clients of a process.
        """
        travels = dict(zip(self.model.state_dict(), self.shared(config), strict=True))
        others = [
            p
            for name, p in self.model.named_parameters()
            if p.requires_grad and travels[name] != shared
        ]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)
