"""FedAvg-distill: the clients train as in FedAvg, and the server distils the mean of their outputs instead of averaging parameters.

Source: Lin, Kong, Stich, Jaggi 2020, "Ensemble Distillation for Robust Model Fusion in Federated Learning" (FedDF), as the baseline of
Shen et al. 2022, section 6. The server's network is fitted, on unlabelled public points, to the mean logits of the clients' models:
from the model of the round before, by squared error, as that paper's program does. FedDF itself starts from the average of the models
and takes the divergence of the softmax: ``start`` = "average", ``distill_loss`` = "kl".

Contract: FedAvg's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, RecordDict

from algorithms.boosting.fit_options import DistillOptions
from algorithms.common.options import option
from strategies.base.averaging import average_arrays
from strategies.base.messages import metrics_of
from strategies.families.distilling import Distilled, networks_of

if TYPE_CHECKING:
    from torch import Tensor

    from algorithms.boosting.distillation import Distiller


@dataclass(frozen=True)
class FedAvgDistillOptions(DistillOptions):
    """Options of FedAvg-distill."""

    start: str = option(
        "server", "the server fits from the model that it sent, or from the average of the replies", choices=["server", "average"]
    )


class FedAvgDistill(Distilled):
    """Server half; every client of a round counts alike in the teacher."""

    def __init__(self, distiller: "Distiller", options: FedAvgDistillOptions | None = None, seed: int = 0, **kwargs: Any) -> None:
        self.options = options or FedAvgDistillOptions()
        super().__init__(distiller, self.options, seed, **kwargs)

    def teacher(self, contents: Sequence[RecordDict]) -> "Tensor":
        """Return the mean logits at the public points."""
        return self.distiller.mean_outputs(networks_of(contents))

    def student(self, contents: Sequence[RecordDict]) -> ArrayRecord:
        """Return the model that was sent, or the average of the replies."""
        if self.options.start == "server":
            return self.sent
        return average_arrays(contents, [float(metrics_of(content)[self.weighted_by_key]) for content in contents])
