"""Histogram boosting: gradient boosted trees grown from sums over all clients, as one
site with all rows would grow them.

The first two rounds agree on bins: clients count their values in cells, finer ones the
second time (``algorithms.boosting.bins``). From then on a round grows one level of a
tree: clients send the sums of gradients and curvatures, and the numbers of rows, by
leaf, feature and bin; the server adds them up and splits every leaf in the best way for
all rows together (``algorithms.boosting.forest``). A tree of depth d takes d
rounds. All sums are of whole numbers, so bins and trees are bit for bit those of the
pooled rows, however the rows are divided among the clients.

If only some clients answer (they are sampled, or others fail), a round makes the step
that the pooled rows of these clients would make from the current forest; the levels of
one tree may use different clients. Without a valid reply the round is repeated.

Sources: Chen, Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016, arXiv
1603.02754; over several sites: Ong, Zhou, Baracaldo, Ludwig, "Adaptive Histogram-Based
Gradient Boosted Trees for Federated Learning", 2020, arXiv 2012.06670 (where each site
has its own bins).

Contract. A message holds the forest (``algorithms.boosting.forest.Forest``, arrays in
the order of its ``NAMES``) and in its configuration ``loss`` and ``sums``, the length
of the reply. The reply to a training message holds one array of ``sums`` whole numbers
(``Forest.sums``), of which only the total over the clients is used, and
``num-examples``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.boosting.forest import GROW, NUMBER, Forest, Growth, Ints
from fedapps.algorithms.boosting.step_sizes import LOSS_NAMES
from fedapps.algorithms.common.options import Options, check_range, option
from fedapps.algorithms.contract.sent import HistogramSent
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import arrays_of, metrics_of, to_record
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.fedavg import FedAvg, FlowerArguments


@dataclass(frozen=True)
class HistogramBoostingOptions(Options):
    """Options of histogram boosting."""

    trees: int = option(
        0, "the run ends after this many trees; 0: as many as the rounds allow", low=0
    )
    depth: int = option(3, "depth of a tree; every level takes one round", low=1, high=12)
    learning_rate: float = option(0.1, "weight of each tree", low=0, high=1, open_low=True)
    min_leaf: int = option(
        20,
        "minimum rows per leaf, over all clients: small leaves reveal single people",
        low=1,
    )
    l2: float = option(1.0, "lambda, added to the curvature of a leaf", low=0)
    bins: int = option(32, "bins of a feature, plus one for missing values", low=2, high=65_536)
    min_cell: int = option(
        1, "minimum rows of a client per cell and bin; it merges neighbouring ones", low=1
    )
    loss: str = option(
        "cross-entropy",
        "loss of a row; regression uses the squared error",
        choices=LOSS_NAMES,
    )
    standardise: bool = option(
        False,
        "bin values that each client has standardised and imputed; false: bin the raw values",
    )

    @property
    def growth(self) -> Growth:
        """The options of the growth of one tree."""
        return Growth(self.min_leaf, self.l2, self.learning_rate)


class HistogramBoosting(FedAvg):
    """Histogram boosting of rows with ``num_features`` numbers; keyword arguments as in
    FedAvg. ``forest``: the current function.

    ``numbers``: clients predict standardised numbers instead of labels; the loss is
    then the squared error. ``outputs``: 1 for two classes, otherwise the number of
    classes; each tree then belongs to one class, in turn.

    The model of a run is the arrays of the forest (``Forest.to_arrays``): a run starts
    from such arrays if it is given them.
    """

    capabilities = Capabilities("sums", "uniform average")
    #: Whether nodes are also split by the site that holds a row.
    by_site = False

    def __init__(
        self,
        num_features: int,
        options: HistogramBoostingOptions | None = None,
        numbers: bool = False,
        outputs: int = 1,
        **kwargs: Unpack[FlowerArguments],
    ) -> None:
        super().__init__(weights="uniform", **kwargs)
        check_range("num_features", num_features, 1)
        self.num_features, self.options = num_features, options or HistogramBoostingOptions()
        self.loss = NUMBER if numbers else self.options.loss
        if outputs > 1 and self.loss != "cross-entropy":
            raise ValueError(f"loss = {self.loss!r}: {outputs} classes need 'cross-entropy'")
        self.forest = Forest.new(num_features, self.options.depth, outputs)
        self._names: dict[int, ClientId] = {}

    @property
    def finished(self) -> bool:
        """Whether all trees have grown."""
        return 0 < self.options.trees <= self.forest.finished

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Return the loss, and the length of the reply."""
        return HistogramSent(self.loss, self.forest.length()).to_config()

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Return the loss."""
        return HistogramSent(self.loss).to_config()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the forest, and ask for the sums that its next step needs."""
        self._open(arrays)
        self._names = dict(clients_of(grid))
        return super().configure_train(server_round, self._model(), config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the forest."""
        self._open(arrays)
        self._names = dict(clients_of(grid))
        return super().configure_evaluate(server_round, self._model(), config, grid)

    def _site(self, node: int) -> str:
        """Return the name of the client at a node."""
        return str(self._names.get(node, node))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the sums of the replies and take the step; skip replies that cannot be
        sums over rows.
        """
        o = self.options
        total, used, sites = np.zeros(self.forest.length(), np.int64), [], {}
        valid = self.answered(replies)
        listed = [
            read(next(iter(arrays_of(reply.content)[0].values()))).astype(np.int64)
            for reply in valid
        ]
        # nodes that sum before they answer give one reply the sums of all
        single = sum(bool(sums.any()) for sums in listed) > 1 or len(listed) == 1
        for reply, sums in zip(valid, listed, strict=True):
            if fault := self.forest.fault(sums, self.loss):
                log(
                    WARNING,
                    "skipped client %s: %s",
                    self._names.get(reply.metadata.src_node_id, "?"),
                    fault,
                )
                continue
            if single:
                sums = self._of_its_rows(sums, reply)
            total += sums
            if self.by_site and self.forest.stage >= GROW:
                sites[self._site(reply.metadata.src_node_id)] = self.forest.of_leaves(sums)
            used.append(reply.content)
        if not used or not total.any():
            return None, None
        self.forest.step(total, o.growth, self.loss, o.bins, sites)
        metrics = self.train_metrics_aggr_fn(used, self.weighted_by_key)
        return self._model(), MetricRecord({**metrics, "trees": self.forest.finished})

    def _of_its_rows(self, sums: Ints, reply: Message) -> Ints:
        """Return the sums, divided by as much as they are over more rows than the
        reply's ``num-examples``: a client's weight is one number, which ``max-weight``
        bounds.
        """
        rows = int(float(metrics_of(reply.content)[self.weighted_by_key]))
        times = -(-self.forest.rows(sums) // max(1, rows))
        if times <= 1:
            return sums
        log(
            WARNING,
            "client %s: its sums are over %d times the rows of its num-examples = %d: divided",
            self._names.get(reply.metadata.src_node_id, "?"),
            times,
            rows,
        )
        return np.asarray(np.trunc(sums / times), np.int64)

    def _model(self) -> ArrayRecord:
        arrays = self.forest.to_arrays()
        return to_record(list(arrays), list(arrays.values()))

    def _open(self, arrays: ArrayRecord) -> None:
        """Take the forest from the arrays of the run: at its start, or when it is
        resumed. Raises ``ValueError`` if it does not match the settings.
        """
        values: dict[str, NDArray[Any]] = {
            name: read(array) for name, array in arrays.items() if "stage" in arrays
        }
        forest = (
            Forest.from_arrays(values)
            if values
            else Forest.new(self.num_features, self.options.depth, self.forest.outputs)
        )
        wanted = (self.num_features, self.options.depth, self.forest.outputs)
        if (len(forest.edges), forest.depth, forest.outputs) != wanted:
            raise ValueError(
                f"the model has {len(forest.edges)} features, trees of depth {forest.depth} and "
                f"{forest.outputs} outputs, but this run has {self.num_features} features, depth = "
                f"{self.options.depth} and {self.forest.outputs} outputs: use the same settings, "
                "or start without that model"
            )
        if forest.sides and not self.by_site:
            raise ValueError(
                f"the model has splits by site, of {len(forest.sides)} sites: run "
                "method = 'site-boosting', or start without that model"
            )
        self.forest = forest
