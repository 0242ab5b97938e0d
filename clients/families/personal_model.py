"""Base for clients that keep a personal model beside the one they send.

A client that has not trained yet has no personal model: it starts from, and is
evaluated with, the received one. Every evaluation also scores the server's model alone.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fedapps.clients.base.scores import as_global
from fedapps.clients.base.training import Arrays, Config, set_arrays
from fedapps.clients.fedavg import FedAvgClient


class PersonalClient(FedAvgClient):
    """Base for clients with a personal model: evaluates the model stored under
    ``kept_as``.
    """

    #: Store name, different for each method, so that after a warm start another
    #: method's model is not taken for this one's.
    kept_as: str
    #: Options with which an evaluation takes one whole model, of classes that store the
    #: model that was scored; empty: the class stores its own part.
    whole: Mapping[str, Any] = MappingProxyType({})

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the personal model, and those of the server's as
        ``global-...``.
        """
        set_arrays(self.model, parameters)
        of_server = as_global(self.score(self.data.test))
        more = self.take_own(config)
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), {**scores, **of_server, **more}

    def take_own(self, config: Config) -> dict[str, float]:
        """Turn ``self.model`` from the server's into the personal model; return further
        metrics about it.
        """
        if (kept := self.kept(config, before=False)) is not None:
            set_arrays(self.model, kept)
        return {}

    def personal_state_dict(
        self, parameters: Arrays, config: Config
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the model that was scored, if the class stores it, and its metrics."""
        if self.whole:
            config = {**config, **self.whole}
            parameters = self.kept(config, before=False) or parameters
        return super().personal_state_dict(parameters, config)

    def kept(self, config: Config, before: bool) -> Arrays | None:
        """Return the stored arrays, or ``None``. Raises ``ValueError`` if they do not
        fit the model.
        """
        kept = self.store.load(self.kept_as, config, before)
        if kept is not None and [a.shape for a in kept] != self.shapes():
            raise ValueError(
                f"client {self.client_id} has stored a personal model of another architecture: use "
                "another results folder"
            )
        return kept

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the stored arrays."""
        return [tuple(t.shape) for t in self.model.state_dict().values()]
