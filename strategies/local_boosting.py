"""Local boosting: every client grows the trees of histogram boosting from its own rows
alone; the baseline of methods for tables.

A round grows one level of each client's tree, as in histogram boosting, so that as many
rounds give as many trees. Nothing is exchanged, and there is no model of all.

Contract: as in ``strategies/local.py``, but for the configuration, which holds the
options (``LocalBoostingSent``).
"""

from dataclasses import dataclass
from typing import Unpack

from fedapps.algorithms.boosting.forest import NUMBER
from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import LocalBoostingSent
from fedapps.strategies.fedavg import FlowerArguments
from fedapps.strategies.local import Local


@dataclass(frozen=True)
class LocalBoostingOptions(Options):
    """Options of local boosting."""

    depth: int = option(3, "depth of a tree; every level takes one round", low=1, high=12)
    learning_rate: float = option(0.1, "weight of each tree", low=0, high=1, open_low=True)
    min_leaf: int = option(5, "minimum rows per leaf, of the client", low=1)
    l2: float = option(1.0, "lambda, added to the curvature of a leaf", low=0)
    bins: int = option(32, "bins of a feature, plus one for missing values", low=2, high=65_536)


class LocalBoosting(Local):
    """Strategy of local boosting; keyword arguments as in FedAvg. ``numbers``: clients
    predict standardised numbers instead of labels.
    """

    def __init__(
        self,
        options: LocalBoostingOptions | None = None,
        numbers: bool = False,
        **kwargs: Unpack[FlowerArguments],
    ) -> None:
        super().__init__(weights="uniform", **kwargs)
        self.options = options or LocalBoostingOptions()
        self.loss = NUMBER if numbers else "cross-entropy"

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Return the options: a client without a tree needs them, too."""
        return self.asked(1.0)

    def asked(self, share: float) -> dict[str, bool | int | float | str]:
        """Return the options; every round asks for one more level of every client's
        tree, whatever the share.
        """
        return LocalBoostingSent(self.loss, **vars(self.options)).to_config()
