"""FedBN's client: its normalisation layers stay on the client. Source:
``strategies/fedbn.py``.
"""

from fedapps.algorithms.common.modules import normalisation
from fedapps.clients.base.training import Config
from fedapps.clients.partial_sharing import PartialClient


class FedBNClient(PartialClient):
    """Keeps parameters and statistics of normalisation layers, shares the rest."""

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether it is shared."""
        own = set(normalisation(self.model))
        return [name not in own for name in self.model.state_dict()]
