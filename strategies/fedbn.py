"""FedBN: FedAvg in which the normalisation layers stay with the clients.

Source: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization", ICLR 2021, arXiv 2102.07623, Algorithm 1. There it is batch
normalisation; here layer, group and instance normalisation stay as well. With none of
them in the model it is FedAvg.

Contract: a training reply holds the arrays that were sent, and ``num-examples``. The
arrays of the normalisation layers, statistics included, are sent in neither direction;
the client keeps its own.
"""

from collections.abc import Sequence
from typing import Unpack

from fedapps.strategies.families.shared_part import SharedPart
from fedapps.strategies.fedavg import FedAvgArguments


class FedBN(SharedPart):
    """FedBN strategy; ``normalisation``: names of the arrays of normalisation layers
    (``algorithms.common.modules.normalisation``).
    """

    def __init__(self, normalisation: Sequence[str], **kwargs: Unpack[FedAvgArguments]) -> None:
        super().__init__(**kwargs)
        self.normalisation = frozenset(normalisation)

    def travels(self, name: str) -> bool:
        """Return whether the array of this name belongs to another layer."""
        return name not in self.normalisation
