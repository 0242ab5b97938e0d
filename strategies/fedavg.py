"""FedAvg: the sample-size-weighted average of the clients' models. Also the base of all
methods that average.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629,
Algorithm 1.

Contract. A training reply holds one ArrayRecord with the names and shapes that were
sent, and one MetricRecord with ``num-examples`` > 0 (the weight). An evaluation reply
holds one MetricRecord with ``num-examples``.

Differences from Flower's FedAvg, from which it inherits: the minimum numbers of nodes
are 1 unless given, sampling uses the client grid's seed, sums run in the order of
client ids (so that a run is reproducible bit for bit), integer buffers keep their type,
a metric need not be reported by every client, and state can be saved.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import Any, TypedDict, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, check_range, option
from fedapps.algorithms.contract.sent import Asked, Scoring
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.client_grid import TIMEOUT, ClientGrid
from fedapps.strategies.base.messages import average_arrays, average_metrics, metrics_of
from fedapps.strategies.base.runs_rounds import RunsRounds


@dataclass(frozen=True)
class FedAvgOptions(Options):
    """Options of FedAvg."""

    weights: str = option(
        "samples",
        "weight of a client: its number of training samples, or 1",
        choices=["samples", "uniform"],
    )


MetricsFn = Callable[[list[RecordDict], str], MetricRecord]


class FlowerArguments(TypedDict, total=False):
    """Keyword arguments of Flower's FedAvg."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFn | None
    evaluate_metrics_aggr_fn: MetricsFn | None


class FedAvgArguments(FlowerArguments, total=False):
    """Keyword arguments of :class:`FedAvg`, which derived strategies take in addition
    to their own.
    """

    weights: str


class FedAvg(RunsRounds, FlowerFedAvg):
    """Weighted averaging; keyword arguments are those of Flower's FedAvg, with minimum
    node counts of 1.

    ``weights``: as in :class:`FedAvgOptions`; metrics are averaged by ``num-examples``
    either way. Raises ``ValueError`` for fractions outside 0 to 1 and for negative
    minima.
    """

    takes_any_metrics = True  # a mean is taken over the clients that report the metric
    #: This strategy itself waits for ``min_available_nodes``, even if the client grid
    #: samples ``clients_per_round``.
    waits_for_clients = True
    #: The model of the round, as it was sent for training.
    sent = ArrayRecord()

    def __init__(self, *, weights: str = "samples", **kwargs: Unpack[FlowerArguments]) -> None:
        minima = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
        averages = {
            "train_metrics_aggr_fn": average_metrics,
            "evaluate_metrics_aggr_fn": average_metrics,
        }
        super().__init__(**{**minima, **averages, **kwargs})  # type: ignore[arg-type]
        for name in ("fraction_train", "fraction_evaluate"):
            check_range(name, getattr(self, name), 0, 1)
        for name in minima:
            check_range(name, getattr(self, name), 0)
            if not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} = {getattr(self, name)}: must be a whole number")
        self.weights = FedAvgOptions(weights).weights

    @property
    def capabilities(self) -> Capabilities:
        """Replies are models, of which only the average is used."""
        return Capabilities(
            "model", "weighted average" if self.weights == "samples" else "uniform average"
        )

    # --- hooks for derived methods ----------------------------------------------------

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Return this method's options for clients in this round, to be sent in the
        training configuration.
        """
        return {}

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Return this method's options for clients, to be sent in the evaluation
        configuration.
        """
        return {}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the server state apart from the model, as arrays (none for plain
        averaging).
        """
        return {}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if state:
            raise ValueError(
                f"the checkpoint is of another method: {type(self).__name__} keeps no state, and "
                f"the checkpoint holds {sorted(state)}"
            )

    # --- the Strategy interface -------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the sampled clients, with :meth:`train_options` in the
        configuration.
        """
        self.enter_loop(arrays, grid)
        self.sent = arrays
        config["server-round"] = server_round  # Flower's own loop leaves that to the strategy
        config.update(self.train_options(server_round, self.rounds_in(config, server_round)))
        nodes = self._sample(grid, server_round, MessageType.TRAIN)
        return self._messages(arrays, config, nodes, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the clients for evaluation, with :meth:`evaluate_options`
        in the configuration.
        """
        if self.fraction_evaluate == 0:
            return []
        config["server-round"] = server_round
        config.update(self.evaluate_options(server_round, self.rounds_in(config, server_round)))
        nodes = self._sample(grid, server_round, MessageType.EVALUATE)
        return self._messages(arrays, config, nodes, MessageType.EVALUATE)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the models by ``num-examples`` or uniformly, and the metrics by
        ``num-examples``.
        """
        contents = [reply.content for reply in self.answered(replies)]
        if not contents:
            return None, None
        arrays = average_arrays(contents, [self._weight(content) for content in contents])
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics by ``num-examples``."""
        contents = [reply.content for reply in self.answered(replies)]
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key) if contents else None

    # --- parts ------------------------------------------------------------------------

    def _weight(self, content: RecordDict) -> float:
        return (
            float(metrics_of(content)[self.weighted_by_key]) if self.weights == "samples" else 1.0
        )

    def _sample(self, grid: Grid, server_round: int, kind: str) -> Sequence[int]:
        """Return the nodes of a phase, by its fraction and minima, once there are
        enough; none if the fraction is 0.
        """
        train = kind == MessageType.TRAIN
        fraction = self.fraction_train if train else self.fraction_evaluate
        minimum = self.min_train_nodes if train else self.min_evaluate_nodes
        if fraction == 0:
            return []
        enough = max(self.min_available_nodes, minimum)
        if isinstance(grid, ClientGrid):
            everyone = grid.wait(enough)
            nodes = grid.get_node_ids() if grid.chooses else everyone
            wanted = max(int(len(nodes) * fraction), minimum)
            if wanted < len(nodes):
                nodes = grid.sample(
                    server_round, wanted, "sampling" if train else "sampling for evaluation"
                )
        else:  # Flower's own loop, or one of its wrappers
            while len(everyone := list(grid.get_node_ids())) < enough:
                log(INFO, "Waiting for nodes: %d of %d are connected", len(everyone), enough)
                time.sleep(1)
            nodes = sorted(random.sample(everyone, max(int(len(everyone) * fraction), minimum)))
        phase = "configure_train" if train else "configure_evaluate"
        log(INFO, "%s: Sampled %s nodes (out of %s)", phase, len(nodes), len(everyone))
        return nodes

    def ask(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        config: Mapping[str, Any],
        question: Mapping[str, Any],
        nodes: Sequence[int],
    ) -> list[Message]:
        """Return the valid answers of these nodes to an evaluation message that asks a
        question, in place of what a configuration asks for beside scores.
        """
        extra = {*Scoring.keys(), *Asked.keys()}
        asked = {key: value for key, value in config.items() if key not in extra}
        messages = self._messages(
            arrays, ConfigRecord({**asked, **question}), nodes, MessageType.EVALUATE
        )
        timeout = getattr(grid, "timeout", TIMEOUT)
        return self.answered(grid.send_and_receive(messages, timeout=timeout))

    def _messages(
        self, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], kind: str
    ) -> list[Message]:
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [
            Message(
                content=content,
                message_type=kind,
                dst_node_id=node,
                group_id=str(config["server-round"]),
            )
            for node in nodes
        ]
