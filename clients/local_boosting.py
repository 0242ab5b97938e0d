"""Client of local boosting: its own trees, grown from its own sums. Source:
``strategies/local_boosting.py``.
"""

from typing import Any

from fedapps.algorithms.boosting.forest import Forest, Growth
from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import LocalBoostingSent
from fedapps.clients.base.options import Config
from fedapps.clients.histogram_boosting import HistogramBoostingClient


class LocalBoostingClient(HistogramBoostingClient):
    """Client of local boosting; arguments as of histogram boosting. It stores its
    forest as ``trees``.
    """

    reads = (LocalBoostingSent,)

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Grow the next level; return no arrays."""
        sent, forest = LocalBoostingSent.from_config(config), self._own(config, before=True)
        sums, metrics = self.sums(forest, config)
        growth = Growth(sent.min_leaf, sent.l2, sent.learning_rate)
        forest.step(sums, growth, sent.loss, sent.bins)
        self.store.save("trees", list(forest.to_arrays().values()), config)
        return [], len(self.data.train), metrics

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the client's own trees."""
        scores = self.scores(self._own(config, before=False), self.data.test, config)
        return scores["loss"], len(self.data.test), scores

    def loss_name(self, config: Config) -> str:
        """Return the name of the loss."""
        return LocalBoostingSent.from_config(config).loss

    def _own(self, config: Config, before: bool) -> Forest:
        if kept := self.store.load("trees", config, before):
            return Forest.from_arrays(kept)
        depth = LocalBoostingSent.from_config(config).depth
        return Forest.new(self.data.train.x.shape[1], depth, self.outputs)
