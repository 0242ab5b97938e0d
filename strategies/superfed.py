"""SuPerFed: a federated and a personal model at each client, randomly mixed in training so that a low-loss path connects them.

Sources: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated Learning", KDD 2022, arXiv 2109.07628; Hahn,
"Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II,
Algorithms 2.3 and 2.4, equations (2.3)-(2.6). The server averages the federated models theta_f as FedAvg does and tells the clients
when mixing starts: after the first L = start * num_rounds rounds. Mixing "model" is SuPerFed-MM (one lambda per mini-batch), "layer" is
SuPerFed-LM (one per layer and mini-batch). The proximal term is squared; see ``clients/superfed.py``.

Contract: FedAvg's. The client trains the received theta_f, which it returns, and a theta_l of its own, which it keeps and never sends,
at random mixtures of the two; the training configuration holds ``proximal-mu``, ``superfed-nu`` and ``superfed-mixing`` ("model",
"layer", or "none" in the first L rounds). If evaluation replies hold ``lambda-grid``, ``lambda-accuracy``,
``lambda-validation-loss`` (over that grid) and ``validation-samples``, ``pooled-accuracy`` is the mean test accuracy at the one lambda
(``pooled-lambda``) that has the least validation loss over all clients.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from algorithms.common.checks import check_choice
from algorithms.common.options import Options, option
from algorithms.personal.mixing import pooled
from strategies.base.messages import metrics_of
from strategies.base.records import most_common
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class SuPerFedOptions(Options):
    """Options of SuPerFed."""

    mu: float = option(0.01, "weight of the proximal term", low=0)
    nu: float = option(1.0, "weight of the squared cosine between federated and personal model", low=0)
    start: float = option(0.4, "L / T, the share of the rounds before mixing starts", low=0, high=1)


class SuPerFed(FedAvg):
    """SuPerFed-MM (``mixing="model"``) and SuPerFed-LM (``mixing="layer"``) strategy."""

    def __init__(self, options: SuPerFedOptions | None = None, mixing: str = "model", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("mixing", mixing, ["model", "layer"])
        self.options = options or SuPerFedOptions()
        self.mixing = mixing
        self.own_measures: Mapping[str, float] = {}

    def train_options(self, server_round: int, num_rounds: int) -> dict[str, bool | int | float | str]:
        """Send mu, nu and the kind of mixing. The paper's ``t < L`` counts rounds from 0: the first L rounds do not mix."""
        mixing = self.mixing if server_round > int(self.options.start * num_rounds) else "none"
        return {"proximal-mu": self.options.mu, "superfed-nu": self.options.nu, "superfed-mixing": mixing}

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics; add what one lambda for all clients would give."""
        valid = [reply for reply in replies if not reply.has_error()]
        self.own_measures = one_for_all([metrics_of(reply.content) for reply in valid])
        metrics = super().aggregate_evaluate(server_round, valid)
        return metrics and MetricRecord({**metrics, **self.own_measures})


CURVES = ("lambda-grid", "lambda-accuracy", "lambda-validation-loss")


def one_for_all(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """Return pooled-accuracy and pooled-lambda of the clients whose curves are complete, on the grid that most of them have."""
    whole = [one for one in metrics if _complete(one)]
    if not whole:
        return {}
    grid = most_common([tuple(one["lambda-grid"]) for one in whole])
    whole = [one for one in whole if tuple(one["lambda-grid"]) == grid]
    accuracies, losses = (np.array([one[name] for one in whole], dtype=float) for name in CURVES[1:])
    best, accuracy = pooled(losses, accuracies, np.array([one["validation-samples"] for one in whole], dtype=float))
    return {"pooled-accuracy": accuracy, "pooled-lambda": float(grid[best])}


def _complete(metrics: Mapping[str, Any]) -> bool:
    """Return whether a client's curves are lists of finite numbers of one length, and its number of samples positive."""
    curves, samples = [metrics.get(name) for name in CURVES], metrics.get("validation-samples")
    if not all(isinstance(curve, list) and curve and all(math.isfinite(value) for value in curve) for curve in curves):
        return False
    alike = len({len(curve) for curve in curves if isinstance(curve, list)}) == 1
    return alike and isinstance(samples, int | float) and math.isfinite(samples) and samples > 0
