"""The client of partial sharing by name; contract: ``strategies/partial.py``."""

from algorithms.personal.name_filter import patterns, travels
from algorithms.personal.sent import PatternsSent
from clients.base.training import Config
from clients.partial_sharing import PartialClient


class FilteredClient(PartialClient):
    """Shares the arrays whose names match the server's patterns."""

    reads = (PatternsSent,)

    def shared(self, config: Config) -> list[bool]:
        """Return, for each array of the model, whether it is shared."""
        sent = PatternsSent.from_config(config)
        share, keep = patterns(sent.share), patterns(sent.keep)
        return [travels(name, share, keep) for name in self.model.state_dict()]
