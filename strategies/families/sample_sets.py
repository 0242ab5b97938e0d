"""Base of methods that produce a set of labelled synthetic samples, evaluated through a
classifier trained on it.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV, section 4.2: the
server trains a classifier on the set and sends it to all clients, which score it on
their own test samples. (The authors' program takes two optimiser steps and scores about
a hundred images.)

Contract of an evaluation: that of FedAvg; the model that is sent is the classifier,
whatever the method trains.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_range
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

Arrays = dict[str, NDArray[Any]]
#: (x (M, ...), y (M,), round) -> the classifier's arrays by name, and the server's own
#: measurements.
Evaluator = Callable[[NDArray[Any], NDArray[Any], int], tuple[Arrays, dict[str, float]]]


def balanced_labels(samples: int, num_classes: int) -> NDArray[np.int32]:
    """Return balanced labels (M,); raise ``ValueError`` unless M = ``samples`` is a
    positive multiple of ``num_classes``.
    """
    check_range("samples", samples, 1)
    if samples % num_classes:
        below, above = (
            samples // num_classes * num_classes,
            -(-samples // num_classes) * num_classes,
        )
        multiples = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"samples = {samples} is not a multiple of the {num_classes} classes: choose "
            f"{multiples}"
        )
    return np.repeat(np.arange(num_classes, dtype=np.int32), samples // num_classes)


def check_low(low: float) -> None:
    """Raise ``ValueError`` unless ``low`` is 0 or -1, the lower end of a range that
    images may have.
    """
    if low not in (0.0, -1.0):
        raise ValueError(f"low = {low:g}: images have values in [0, 1] or [-1, 1]: choose 0 or -1")


class Synthetic(FedAvg):
    """Base strategy. ``evaluator`` trains the classifier and measures the set;
    ``seed`` determines the random draws.

    ``samples``: M, a multiple of ``num_classes``.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        num_classes: int,
        samples: int = 100,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.evaluator = evaluator
        self.seed = seed
        self.labels = balanced_labels(samples, num_classes)
        self.own_measures: Mapping[str, float] = {}
        self._judged: (
            tuple[tuple[NDArray[Any], NDArray[Any], int], tuple[Arrays, dict[str, float]]] | None
        ) = None

    @abstractmethod
    def first_arrays(self) -> Arrays:
        """Return the initial arrays of the run, which replace the task's model."""

    @abstractmethod
    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the synthetic set, x (M, ...) and y (M,), given the run's current
        arrays.
        """

    def evaluated(self, arrays: ArrayRecord, server_round: int) -> tuple[Arrays, dict[str, float]]:
        """Return the evaluator's result for the set after a round; the last result is
        kept.
        """
        x, y = self.samples(arrays)
        if self._judged is None or not _same(self._judged[0], (x, y, server_round)):
            self._judged = (x, y, server_round), self.evaluator(x, y, server_round)
        return self._judged[1]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Train the classifier on the set and send it to the clients."""
        classifier, self.own_measures = self.evaluated(arrays, server_round)
        return super().configure_evaluate(
            server_round, to_record(list(classifier), list(classifier.values())), config, grid
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the clients' metrics and add the server's own."""
        metrics = super().aggregate_evaluate(server_round, replies)
        return (
            MetricRecord({**(metrics or {}), **self.own_measures})
            if metrics or self.own_measures
            else None
        )


def _same(
    one: tuple[NDArray[Any], NDArray[Any], int], other: tuple[NDArray[Any], NDArray[Any], int]
) -> bool:
    return (
        one[2] == other[2] and np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])
    )
