"""Local's client: trains its own model from round to round and shares only metrics.

The initial model is the one that a federated run of the same seed starts from.
"""

from typing import Any

from clients.base.training import Arrays, Config, get_arrays, set_arrays
from clients.fedavg import FedAvgClient, as_global


class LocalClient(FedAvgClient):
    """Trains and evaluates a purely local model."""

    differentiates_surrogate = True

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the client's own model further; return no arrays."""
        set_arrays(self.model, self.own_model(config, before=True))
        loss = self.train(config)
        self.store.save("model", get_arrays(self.model), config)
        return [], len(self.data.train), {"loss": loss}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the client's own model, and the server's, which stays the initial one."""
        set_arrays(self.model, parameters)
        of_server = as_global(self.score(self.data.test))
        set_arrays(self.model, self.own_model(config, before=False))
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), {**scores, **of_server}

    def own_model(self, config: Config, before: bool) -> Arrays:
        """Return the client's own model, or the initial one if it has not been trained yet."""
        return self.store.load("model", config, before) or self.fresh_arrays("model", config, own=False)
