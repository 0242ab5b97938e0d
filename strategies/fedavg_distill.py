"""FedAvg-distill: the clients train as in FedAvg, and the server distils the mean of
their outputs instead of averaging parameters.

Sources: Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in
Federated Learning" (FedDF), NeurIPS 2020, arXiv 2006.07242; as the baseline of Shen,
Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS 2022, arXiv
2103.06972, section 6. The server fits its network to the mean logits of the clients'
models on unlabelled public points, starting from the previous global model and with the
squared error, as the program of Shen et al. does. FedDF itself starts from the average
of the models and uses the divergence of the softmax: ``start`` = "average",
``distill_loss`` = "kl".

Contract: FedAvg's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from flwr.app import ArrayRecord, RecordDict

from fedapps.algorithms.boosting.fit_options import DistillOptions
from fedapps.algorithms.common.options import option
from fedapps.strategies.base.messages import average_arrays, metrics_of
from fedapps.strategies.families.distilling import Distilled, values_of
from fedapps.strategies.fedavg import FedAvgArguments

if TYPE_CHECKING:
    from torch import Tensor

    from fedapps.algorithms.boosting.regression import Distiller


@dataclass(frozen=True)
class FedAvgDistillOptions(DistillOptions):
    """Options of FedAvg-distill."""

    start: str = option(
        "server",
        "the server fits from the model that it sent, or from the average of the replies",
        choices=["server", "average"],
    )


class FedAvgDistill(Distilled):
    """FedAvg-distill strategy; all clients of a round have equal weight in the
    teacher.
    """

    def __init__(
        self,
        distiller: "Distiller",
        options: FedAvgDistillOptions | None = None,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        self.options = options or FedAvgDistillOptions()
        super().__init__(distiller, self.options, seed, **kwargs)

    def teacher(self, contents: Sequence[RecordDict]) -> "Tensor":
        """Return the mean logits at the public points."""
        own = self.distiller.outputs(values_of(self.sent))
        return self.mean_outputs(contents, own).add_(own)

    def student(self, contents: Sequence[RecordDict]) -> ArrayRecord:
        """Return the model that was sent, or the average of the replies."""
        if self.options.start == "server":
            return self.sent
        return average_arrays(
            contents, [float(metrics_of(content)[self.weighted_by_key]) for content in contents]
        )
