"""Projected FedAvg: the projection-based baseline of federated Frank-Wolfe.

Clients make projected gradient steps on f_i from x_bar; the server averages the points
and projects the mean.

Contract. Down: x_bar; ``local-steps``, ``learning-rate`` and ``batch-size`` in the
configuration. Up: the client's point, in arrays like those that were sent, and
``num-examples``. Clients are stateless.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING
from typing import Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.contract.sent import ProjectedSent
from fedapps.algorithms.frank_wolfe.domain import Domain
from fedapps.strategies.base.messages import round_of, values_in
from fedapps.strategies.families.consensus import Constrained
from fedapps.strategies.fedavg import FedAvgArguments


@dataclass(frozen=True)
class ProjectedOptions(Options):
    """Options of projected FedAvg."""

    learning_rate: float = option(0.0, "learning rate of the clients' steps; 0: the task's", low=0)
    local_steps: int = option(1, "projected gradient steps per round", low=1)
    batch_size: int = option(0, "samples of a gradient; 0: all", low=0)
    tolerance: float = option(
        0.0, "stop once an evaluation finds a duality gap of at most this; 0: never", low=0
    )


class ProjectedFedAvg(Constrained):
    """Projected FedAvg strategy; raises ``ValueError`` for a domain without projection.

    ``learning_rate``: used if it is 0 in the options.
    """

    def __init__(
        self,
        domain: Domain,
        options: ProjectedOptions | None = None,
        *,
        learning_rate: float = 0.1,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        self.options = options or ProjectedOptions()
        super().__init__(domain, tolerance=self.options.tolerance, **kwargs)
        if not domain.projects:
            raise ValueError(
                f"{type(domain).__name__} has no projection: choose method = 'fedfw' or "
                "'fedfw-plus'"
            )
        self.learning_rate = self.options.learning_rate or learning_rate

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the learning rate, local steps and batch size."""
        return ProjectedSent(
            self.learning_rate, self.options.local_steps, self.options.batch_size
        ).to_config()

    def configure_step(
        self, step: int, num_steps: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the point to the sampled clients."""
        server_round = round_of(config)
        config.update(self.train_options(server_round, num_steps))
        nodes = self._sample(grid, server_round, MessageType.TRAIN)
        return self._messages(arrays, config, nodes, MessageType.TRAIN)

    def aggregate_step(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the points and project the mean, since received points may lie
        outside the domain.
        """
        used, points = [], []
        for reply in self.answered(replies):
            try:
                point = self.domain.join(values_in(reply.content))
                if point.dtype.kind != "f":
                    raise ValueError(f"its point has type {point.dtype}: it must be floating point")
            except ValueError as error:
                log(WARNING, "skipped node %d: %s", reply.metadata.src_node_id, error)
            else:
                used.append(reply.content)
                points.append(point)
        if not points:
            return None, None
        mean = np.asarray(np.mean(points, axis=0, dtype=np.float64))
        model = self.model(self.domain.project(mean).astype(points[0].dtype))
        return model, self.train_metrics_aggr_fn(used, self.weighted_by_key)
