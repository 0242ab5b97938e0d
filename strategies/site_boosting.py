"""Histogram boosting whose trees know sites: a node may also be split by the site that
holds a row, which makes the trees personal.

Source: Khellaf, Scornet, Bellet, Josse, "Principled Federated Random Forests for
Heterogeneous Data", 2026, arXiv 2602.03258 (FedForest: splits on client indicators, in
forests); here in boosting, by ``algorithms.boosting.forest.split_by_site``.

Contract: that of ``strategies/histogram_boosting.py``, of whose replies also the total
of each client by leaf is used. A message also holds ``side``, the ``left`` of its
receiver.
"""

from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedapps.algorithms.boosting.forest import NAMES
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.histogram_boosting import HistogramBoosting


class SiteBoosting(HistogramBoosting):
    """Histogram boosting with splits by site."""

    capabilities = Capabilities("sums", "single replies")
    by_site = True

    def _messages(
        self, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], kind: str
    ) -> list[Message]:
        """Return the messages, each with the sides of its own site."""
        shared, messages = {name: arrays[name] for name in NAMES}, []
        for node in nodes:
            side = self.forest.sides.get(self._site(node), self.forest.left)
            own = to_record(["side"], [side])
            messages += super()._messages(ArrayRecord({**shared, **own}), config, [node], kind)
        return messages
