"""Client of ``strategies.WarmStart``: delegates each message to one of two clients, as
its configuration says.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.client import NumPyClient

from fedapps.algorithms.contract.sent import PartialWork, WarmStartSent
from fedapps.clients.base.options import acknowledged
from fedapps.clients.base.precision import at_precision
from fedapps.clients.base.training import Arrays, Config


class WarmStartClient(NumPyClient):
    """Delegates to one of ``halves``, factories of the clients "first" and "then";
    ``warm-start-half`` in the configuration selects.
    """

    def __init__(self, halves: Mapping[str, Callable[[], NumPyClient]]) -> None:
        self.halves = halves
        self.came: PartialWork | None = None

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Train with the selected client."""
        half = self.half(config)
        arrays, num_examples, metrics = half.fit(parameters, dict(config))
        self.came = getattr(half, "came", None)
        return arrays, num_examples, {**acknowledged(type(half)), **metrics}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate with the selected client."""
        loss, num_examples, metrics = self.half(config).evaluate(parameters, dict(config))
        return loss, num_examples, dict(metrics)

    def half(self, config: Config) -> NumPyClient:
        """Return the client that the configuration selects."""
        name = WarmStartSent.from_config(config).half
        if name is None or name not in self.halves:
            raise ValueError(
                f"warm-start-half = {name!r} in the configuration: the server's strategy must be "
                "WarmStart"
            )
        return at_precision(self.halves[name](), config)
