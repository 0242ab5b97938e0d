"""The client of partial sharing by name; contract: ``strategies/partial.py``."""

from algorithms.personal.name_filter import patterns, travels
from clients.base.training import Config
from clients.partial_sharing import PartialClient


class FilteredClient(PartialClient):
    """Shares the arrays whose names match the server's patterns."""

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether it is shared."""
        share, keep = patterns(str(config["partial-share"])), patterns(str(config["partial-keep"]))
        return [travels(name, share, keep) for name in self.model.state_dict()]
