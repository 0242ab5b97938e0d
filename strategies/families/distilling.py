"""Base of methods whose server distils the clients' networks into one, on unlabelled
public points, instead of averaging parameters.

The teacher is a combination of the outputs of the clients' networks, evaluated once per
round at the public points. See ``algorithms/boosting/regression.py``. A bound on a
network's parameters is none on its outputs, so these have the same bound as updates, by
their own lengths: three times the longest of nine tenths (hardened: the median). A liar
of n clients then moves the teacher by 3 / n times that length at most.

Contract: a training reply holds one network, with the names and shapes that were sent,
and ``num-examples``.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.boosting.fit_options import DistillOptions
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import HALF, arrays_of, reference, to_record
from fedapps.strategies.base.relative_bounds import FEW, HARDENED
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

if TYPE_CHECKING:  # reading the options must not import PyTorch
    from torch import Tensor

    from fedapps.algorithms.boosting.regression import Distiller

Arrays = list[NDArray[Any]]


class Distilled(FedAvg):
    """Base strategy; ``distiller`` holds a network and the public points, ``seed``
    determines the random draws of the fit.
    """

    capabilities = Capabilities(replies="model", aggregation="single replies", subset=True)

    def __init__(
        self,
        distiller: "Distiller",
        options: DistillOptions,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.distiller = distiller
        self.distill_options = options
        self.seed = seed
        self.models_sent: dict[str, int] = {}
        self.liars = FEW  # the share of largest outputs that their bound does not go by

    def harden(self) -> None:
        """Bound the outputs by their median, as the models are."""
        self.liars = HALF

    def mean_outputs(self, contents: Sequence[RecordDict], origin: "Tensor") -> "Tensor":
        """Return the mean of ``outputs - origin`` (m, classes) over the clients'
        networks, the longest of them shortened.
        """
        moves = [
            self.distiller.outputs(values_of(arrays_of(content)[0])) - origin
            for content in contents
        ]
        lengths = [float(move.norm()) for move in moves]
        most = HARDENED * reference(lengths, self.liars)
        total = moves[0] * 0
        for move, length in zip(moves, lengths, strict=True):
            total.add_(move, alpha=most / length if length > most else 1.0)
        return total.div_(len(moves))

    @abstractmethod
    def teacher(self, contents: Sequence[RecordDict]) -> "Tensor":
        """Return the teacher's outputs (m, classes) at the public points, computed from
        the clients' replies.
        """

    def student(self, contents: Sequence[RecordDict]) -> ArrayRecord:
        """Return the initial network of the fit: the one that was sent."""
        return self.sent

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model; count the messages."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.models_sent = {"models-up": 0, "models-down": len(messages)}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fit the network to the teacher; add the loss of the fit (``distill-loss``) to
        the clients' metrics.
        """
        contents = [reply.content for reply in self.answered(replies)]
        if not contents:
            return None, None
        rng = generator(self.seed, "distillation", server_round=server_round)
        start = values_of(self.student(contents))
        fitted, loss = self.distiller.distil(
            start, self.teacher(contents), self.distill_options.fit, rng
        )
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        self.models_sent["models-up"] = len(contents)
        return to_record(list(self.sent), fitted), MetricRecord({**metrics, "distill-loss": loss})


def values_of(record: ArrayRecord) -> Arrays:
    """Return the values of a record's arrays."""
    return [read(array) for array in record.values()]
