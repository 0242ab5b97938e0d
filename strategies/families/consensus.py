"""Base of the methods for constrained problems: ``min F(x) = (1/n) sum_i f_i(x)`` over a convex compact set, and their evaluation.

Contract of an evaluation. The message is a training message whose configuration holds ``phase = "evaluate"``, so the reply can carry
arrays: the gradient of f_i at x_bar (one array of the domain's shape, or the values and int64 flat indices of a sparse gradient). Its
metrics are ``num-examples``, ``loss`` = f_i(x_bar) and, if the client has a point of its own, ``distance`` = ||x_i - x_bar||. From the
replies of all clients the server reports ``objective`` = F(x_bar), ``gap`` = <grad F, x_bar - lmo(grad F)>, which bounds
F(x_bar) - min F if F is convex, and ``consensus`` = sqrt(sum_i ||x_i - x_bar||^2). A gap of at most ``tolerance`` ends the run.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from algorithms.common.wire import read
from algorithms.frank_wolfe.atoms import Array
from algorithms.frank_wolfe.domain import Domain
from algorithms.frank_wolfe.steps import duality_gap
from strategies.base.capabilities import Capabilities
from strategies.base.messages import arrays_of, metrics_of
from strategies.base.records import to_record
from strategies.fedavg import FedAvg

Measure = Callable[[Array, Mapping[str, float], int], Mapping[str, float]]


class Constrained(FedAvg):
    """Base strategy of a method over ``domain``; clients have equal weights.

    ``tolerance``: stop once the gap is at most this (0: never). ``measure(x_bar, means, num_clients)`` returns further metrics to
    report; ``means``: the clients' metrics, averaged uniformly, and ``objective``. Keyword arguments as in FedAvg.
    """

    capabilities = Capabilities(replies="other", aggregation="single replies", any_scale=True)

    def __init__(self, domain: Domain, *, tolerance: float = 0.0, measure: Measure | None = None, **kwargs: Any) -> None:
        super().__init__(**({"weights": "uniform"} | kwargs))
        self.domain = domain
        self.tolerance = tolerance
        self.measure = measure
        self.finished = False
        self.own_measures: Mapping[str, float] = {}
        self._asked = 0
        self._evaluated: Array = np.zeros(0)

    def open_model(self, arrays: ArrayRecord, server_round: int = 0) -> Array:
        """Return a copy of x_bar. Raises ``ValueError`` if it does not fit the domain or, in round 1, lies outside."""
        x_bar = np.array(self.domain.join([read(array) for array in arrays.values()]))
        if server_round == 1 and not self.domain.contains(x_bar, 1e-5):
            raise ValueError(
                f"the start lies outside of the {type(self.domain).__name__}: begin with domain.start() or a projected point"
            )
        return x_bar

    def model(self, x_bar: Array, names: Iterable[str]) -> ArrayRecord:
        """Return x_bar as an array record with these names."""
        return to_record(list(names), self.domain.split(x_bar))

    # --- evaluation ------------------------------------------------------------------------------------------------

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Request the loss and gradient at x_bar."""
        if self.fraction_evaluate == 0:
            return []
        config.update({"server-round": server_round, "phase": "evaluate"})
        nodes = self._sample(grid, server_round, MessageType.EVALUATE)
        self._evaluated, self._asked = self.open_model(arrays), len(list(grid.get_node_ids()))
        return self._messages(arrays, config, nodes, MessageType.TRAIN)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics; if all clients replied, add objective, gap, consensus and the metrics of ``measure``."""
        self.own_measures = {}
        valid = [reply for reply in replies if not reply.has_error()]
        if not valid:
            return None
        contents = [reply.content for reply in valid]
        metrics = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
        gradient = np.zeros(self.domain.shape)
        try:
            for reply in valid:
                _add(gradient, [read(array) for array in arrays_of(reply.content)[0].values()])
        except (ValueError, IndexError, TypeError) as error:
            log(WARNING, "no gap: the gradient of node %d does not fit: %s", reply.metadata.src_node_id, error)
            return metrics
        if len(valid) < self._asked:  # F is known only from all clients
            return metrics
        n, x_bar = len(valid), self._evaluated
        listed = [metrics_of(content) for content in contents]
        names = [name for name in listed[0] if all(isinstance(row.get(name), int | float) for row in listed)]
        if "loss" not in names:
            log(WARNING, "no gap: a client did not say its loss")
            return metrics
        means = {name: sum(float(row[name]) for row in listed) / n for name in names}
        means["objective"] = means["loss"]
        own = {"objective": means["loss"], "gap": duality_gap(self.domain, x_bar, gradient / n)}
        if "distance" in means:
            own["consensus"] = math.sqrt(sum(float(row["distance"]) ** 2 for row in listed))
        if self.measure:
            own |= {name: float(value) for name, value in self.measure(x_bar, means, n).items()}
        self.own_measures = own
        self.finished = self.tolerance > 0 and own["gap"] <= self.tolerance
        return MetricRecord({**metrics, **own})


def _add(total: NDArray[np.float64], packed: list[Array]) -> None:
    """Add the gradient packed in a message to ``total``."""
    if len(packed) == 1:
        if packed[0].shape != total.shape:
            raise ValueError(f"its shape is {packed[0].shape}, that of the domain {total.shape}")
        total += packed[0]
    else:
        values, indices = packed
        if values.shape != indices.shape or values.ndim != 1 or indices.dtype.kind != "i" or indices.min(initial=0) < 0:
            raise ValueError(f"values {values.shape} at indices {indices.shape} of type {indices.dtype}")
        total.reshape(-1)[indices] += values  # an index beyond the end is an IndexError
