"""FedMDFG's client: FedAvg's, which also tells its losses after steps of several
lengths; source and contract: ``strategies/fedmdfg.py``.
"""

from typing import Any

import numpy as np

from fedapps.algorithms.contract.sent import FedMDFGSent
from fedapps.clients.base.training import Arrays, Config, set_arrays
from fedapps.clients.fedavg import FedAvgClient

#: Reported for a larger loss, or one that is not a number.
LARGEST = 1e30


class FedMDFGClient(FedAvgClient):
    """Trains and is scored as FedAvg's client."""

    reads = (FedMDFGSent,)

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the model, or, if the server asks for them, the
        training losses between the two models that it sent.
        """
        steps = FedMDFGSent.from_config(config).steps
        if not steps:
            return super().evaluate(parameters, config)
        half, losses = len(parameters) // 2, []
        for step in steps:
            set_arrays(
                self.model,
                [
                    np.asarray(w + step * (end - w), w.dtype)
                    for w, end in zip(parameters[:half], parameters[half:], strict=True)
                ],
            )
            losses.append(self.mean_loss(self.data.train))
        told = [loss if loss < LARGEST else LARGEST for loss in losses]
        return told[0], len(self.data.train), {"trial-losses": told}
