"""Base for clients that keep their whole net and send nothing of it, so that each may
have another one.
"""

from typing import Any

from fedapps.clients.base.training import Arrays, Config, set_arrays
from fedapps.clients.fedavg import FedAvgClient


class OwnNetClient(FedAvgClient):
    """Base for clients with a net of their own, stored under ``model``."""

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the client's own net; the server has none that could be scored."""
        set_arrays(self.model, self.own_model(config, before=False))
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), scores

    def own_model(self, config: Config, before: bool) -> Arrays:
        """Return the client's own net, or the initial one if it has not been trained
        yet.
        """
        return self.store.load("model", config, before) or self.fresh_arrays(
            "model", config, own=False
        )
