"""Local's client: trains its own model, round after round, and shares nothing but metrics.

It starts from the initialisation that a federated run of the same seed would start from.
"""

from typing import Any

from clients.base.training import Arrays, Config, get_arrays, set_arrays
from clients.fedavg import FedAvgClient, as_global


class LocalClient(FedAvgClient):
    """A client without a federation."""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the client's own model further; return no arrays."""
        set_arrays(self.model, self.own_model(config, before=True))
        loss = self.train(config)
        self.store.save("model", get_arrays(self.model), config)
        return [], len(self.data.train), {"loss": loss}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Score the client's own model, and the server's (which stays what it was at the start)."""
        set_arrays(self.model, parameters)
        of_server = as_global(self.score(self.data.test))
        set_arrays(self.model, self.own_model(config, before=False))
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), {**scores, **of_server}

    def own_model(self, config: Config, before: bool) -> Arrays:
        """Return the client's own model, as initialised while it has not been trained."""
        return self.store.load("model", config, before) or self.fresh_arrays("model", config, own=False)
