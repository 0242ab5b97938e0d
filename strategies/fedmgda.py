"""FedMGDA+: the server steps along the minimum-norm combination of the clients' normalised updates, so that no client loses much.

Source: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE Transactions on Network Science and
Engineering, 2022, arXiv 2006.11489, Algorithm 1. With the unit updates g_k:

    lambda = argmin | sum_k lambda_k g_k |^2   over the simplex, |lambda_k - 1/m| <= epsilon
    w      <- w + eta sum_k lambda_k g_k

epsilon = 0 is the uniform average of the directions, epsilon = 1 the minimum-norm point of MGDA. A client gains nothing by inflating
its update, and steps are never longer than eta.

Contract: FedAvg's. Losses are not needed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from algorithms.common.options import Options, option
from algorithms.fairness.weight_rules import min_norm_in_box
from strategies.base.capabilities import Capabilities
from strategies.base.client_grid import ClientId, clients_of
from strategies.base.messages import arrays_of
from strategies.base.records import average_arrays
from strategies.base.updates import moved, updates
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class FedMGDAOptions(Options):
    """Options of FedMGDA+."""

    epsilon: float = option(0.1, "how far a client's weight may be from uniform; 1: the minimum-norm point", low=0, high=1)
    server_learning_rate: float = option(1.0, "eta, the length of a step where all clients agree", low=0, open_low=True)


class FedMGDA(FedAvg):
    """FedMGDA+ strategy; the clients are FedAvg's."""

    capabilities = Capabilities(replies="model", aggregation="single replies", subset=True)

    def __init__(self, options: FedMGDAOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options or FedMGDAOptions()
        self.last_weights: dict[ClientId, float] = {}
        self._names: dict[int, ClientId] = {}
        self._sent = ArrayRecord()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Send the model and remember it."""
        self._names, self._sent = clients_of(grid), arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the server step; metrics are averaged by ``num-examples``."""
        valid = [reply for reply in replies if not reply.has_error()]
        if not valid:
            self.last_weights = {}
            return None, None
        contents = [reply.content for reply in valid]
        moves = updates(self._sent, [arrays_of(content)[0] for content in contents])
        lengths = np.linalg.norm(moves, axis=1, keepdims=True)
        units = np.divide(moves, lengths, out=np.zeros_like(moves), where=lengths > 0)
        weights = min_norm_in_box(units @ units.T, np.full(len(valid), 1 / len(valid)), self.options.epsilon)
        self.last_weights = {self._names[reply.metadata.src_node_id]: float(w) for reply, w in zip(valid, weights, strict=True)}
        step = self.options.server_learning_rate * (weights @ units)
        arrays = moved(self._sent, step, average_arrays(contents, weights.tolist()))
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        facts = {"step-length": float(np.linalg.norm(step)), "weight-max": float(weights.max())}
        return arrays, MetricRecord({**metrics, **facts})
