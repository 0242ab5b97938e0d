"""IFCA: k models for k clusters of clients; each client trains the one that fits its
samples best.

Source: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated
Learning", NeurIPS 2020, arXiv 2006.04088, Algorithm 1, option II (model averaging).
With the models theta_1 .. theta_k, in each round:

    server: sends all k models
    client i: j_i = argmin_j F_i(theta_j), the loss on its training samples
              returns j_i and theta_i, theta_{j_i} after its local steps
    server: theta_j <- mean of the theta_i with j_i = j; without any, theta_j stays

Start "random": the first model is the run's, and the others are initialised at random,
as in the paper. Start "diverse" *(ours)*: in the first round the clients train the
run's model; k-means groups the trained models (``algorithms/personal/clusters.py``),
and the means of the groups are the k models. It is needed where all nets start from
the same point, such as linear ones at 0. Clustering of locally trained models: Ghosh,
Hong, Yin, Ramchandran, "Robust Federated Learning in a Heterogeneous Environment",
2019, arXiv 1906.06629, Algorithm 1.

Contract: a message holds the first model and after it, under ``cluster-J.NAME``, those
others that the server has; ``ifca-clusters`` is k, and ``ifca-sent`` lists the models
in the message. A client initialises the missing ones itself, all clients alike. Its
reply holds the one trained model, in the order of the first, and the metric
``cluster``, j_i counted from 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import IFCASent, Reads
from fedapps.algorithms.contract.wire import fields, read
from fedapps.algorithms.personal.clusters import grouped
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import average_arrays, metrics_of, to_record, values_in
from fedapps.strategies.base.updates import flat, learned
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

CLUSTER = "cluster-{}."


@dataclass(frozen=True)
class IFCAOptions(Options):
    """Options of IFCA."""

    PRINTED = MappingProxyType({"start": "random"})

    clusters: int = option(2, "k, the number of models", low=1)
    start: str = option(
        "diverse",
        "the first k models: k-means of the clients' models after a first round, or random",
        choices=["diverse", "random"],
    )


class IFCA(FedAvg):
    """IFCA strategy. The run's model is the first cluster's."""

    client_half: Reads = (IFCASent,)
    capabilities = Capabilities(
        replies="other",
        aggregation="single replies",
        no_global_model="each cluster of clients has its own model",
    )
    #: Its clients may end a round early (``strategies.base.partial_work``).
    needs_all_steps = ""

    def __init__(
        self, options: IFCAOptions | None = None, **kwargs: Unpack[FedAvgArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.options = options or IFCAOptions()
        #: The models of the clusters from the second on that are not initial, by
        #: cluster and name of array.
        self.others: dict[int, dict[str, NDArray[Any]]] = {}
        self._sent = ArrayRecord()
        self.models_sent: dict[str, int] = {}

    @property
    def grouping(self) -> bool:
        """Whether the next round trains one model and groups the replies."""
        return self.options.start == "diverse" and self.options.clusters > 1 and not self.others

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send which models the message holds."""
        k = 1 if self.grouping else self.options.clusters
        return IFCASent(k, [0, *sorted(self.others)]).to_config()

    evaluate_options = train_options

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the models."""
        self._sent = arrays
        messages = list(super().configure_train(server_round, self._all(arrays), config, grid))
        self.models_sent = {"models-up": 0, "models-down": (1 + len(self.others)) * len(messages)}
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the models."""
        return super().configure_evaluate(server_round, self._all(arrays), config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the models of each cluster."""
        valid = [reply for reply in self.answered(replies) if self._fits(reply)]
        self.models_sent["models-up"] = len(valid)
        contents = [reply.content for reply in valid]
        if not contents:
            return None, None
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        metrics.pop("cluster", None)  # the mean of numbers that are names
        groups = [int(metrics_of(content)["cluster"]) for content in contents]
        if self.grouping:
            groups = self._grouped(server_round, contents)
        means = {
            j: self._mean([c for c, own in zip(contents, groups, strict=True) if own == j])
            for j in sorted(set(groups))
        }
        for j, mean in means.items():
            if j:
                self.others[j] = {name: read(array).copy() for name, array in mean.items()}
        return means.get(0, self._sent), metrics

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the models of the clusters from the second on."""
        return {
            CLUSTER.format(j) + name: array
            for j, model in self.others.items()
            for name, array in model.items()
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.others = {}
        for key, array in state.items():
            cluster, _, name = key.removeprefix("cluster-").partition(".")
            self.others.setdefault(int(cluster), {})[name] = array

    # --- parts ------------------------------------------------------------------------

    def _all(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return all models that the server has as one record."""
        return ArrayRecord(
            {
                **arrays,
                **{
                    CLUSTER.format(j) + name: Array(*fields(self.others[j][name]))
                    for j in sorted(self.others)
                    for name in arrays
                },
            }
        )

    def _fits(self, reply: Message) -> bool:
        """Return whether a reply holds a model of the right shapes and a cluster; log
        it if not.
        """
        got = values_in(reply.content)
        cluster = metrics_of(reply.content).get("cluster")
        want = [tuple(array.shape) for array in self._sent.values()]
        if [array.shape for array in got] == want and cluster in range(self.options.clusters):
            return True
        log(
            WARNING,
            "node %d: its reply is left out: it must hold the arrays of one model, of the shapes "
            "that were sent, and a cluster from 0 to %d",
            reply.metadata.src_node_id,
            self.options.clusters - 1,
        )
        return False

    def _grouped(self, server_round: int, contents: Sequence[RecordDict]) -> list[int]:
        """Return the groups of models alike; one group if there are too few models."""
        k = self.options.clusters
        if len(contents) < k:
            log(
                WARNING,
                "round %d: %d clients answered, which cannot be grouped into ifca.clusters = %d: "
                "the next round groups its clients instead",
                server_round,
                len(contents),
                k,
            )
            return [0] * len(contents)
        points = np.stack([flat(learned(self._mean([content]))) for content in contents])
        return [int(group) for group in grouped(points, k)]

    def _mean(self, contents: Sequence[RecordDict]) -> ArrayRecord:
        """Return the average of some replies, with the names and types of the model."""
        average = average_arrays(contents, [self._weight(content) for content in contents])
        arrays = [
            np.asarray(read(array), dtype=sent.dtype)
            for array, sent in zip(average.values(), self._sent.values(), strict=True)
        ]
        return to_record(list(self._sent), arrays)
