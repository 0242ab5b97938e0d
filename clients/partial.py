"""The client of partial sharing by name; contract: ``strategies/partial.py``."""

from fedapps.algorithms.common.options import names_in
from fedapps.algorithms.contract.sent import PatternsSent
from fedapps.algorithms.personal.name_filter import travels
from fedapps.clients.base.training import Config
from fedapps.clients.partial_sharing import PartialClient


class FilteredClient(PartialClient):
    """Shares the arrays whose names match the server's patterns."""

    reads = (PatternsSent,)

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether it is shared."""
        sent = PatternsSent.from_config(config)
        share, keep = names_in(sent.share), names_in(sent.keep)
        return [travels(name, share, keep) for name in self.model.state_dict()]
