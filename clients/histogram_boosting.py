"""Client of histogram boosting: sums over its rows, by leaf, feature and bin. Source:
``strategies/histogram_boosting.py``.

The client stores the function's values at its training rows, (n,) float64, with the
number of trees in them, so that a round evaluates new trees only. If the values are
lost, or belong to other trees, they are computed anew from the message, which holds all
trees.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedapps.algorithms.boosting.bins import LARGEST
from fedapps.algorithms.boosting.forest import GROW, NAMES, Floats, Forest, Ints, merged
from fedapps.algorithms.boosting.functional import LOSSES, check_labels
from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import HistogramSent, Sent
from fedapps.clients.base.data import ArrayData, ArraySplit
from fedapps.clients.base.options import Config
from fedapps.clients.base.scores import (
    Scores,
    ScoresValidation,
    as_global,
    binary_scores,
    regression_scores,
    row_results,
    scores_of_values,
)
from fedapps.clients.base.store import MessageStore, Store

NAME = "values"
#: Larger sums need 64 bits.
SMALL = 2**31


class HistogramBoostingClient(ScoresValidation):
    """Client of histogram boosting; ``data``: rows (n, F), NaN where a value is
    missing, with labels 0 or 1, or of several ``outputs`` 0 to outputs - 1.

    ``scale``: if given, the task is regression; labels are standardised targets (n, 1),
    and ``scale`` and ``center`` are their deviation and mean in original units. Raises
    ``ValueError`` for other labels.

    ``min_cell``: no count or sum that leaves the client is over fewer rows
    (``algorithms.boosting.forest``). A client with fewer does not train.
    """

    reads: tuple[type[Sent], ...] = (HistogramSent,)

    def __init__(
        self,
        data: ArrayData,
        client_id: int | str = 0,
        store: Store | None = None,
        scale: float | None = None,
        outputs: int = 1,
        min_cell: int = 1,
        center: float = 0.0,
    ) -> None:
        if scale is None:
            check_labels(data.train.y, outputs)
        self.scale, self.center, self.outputs, self.min_cell = scale, center, outputs, min_cell
        self.data, self.client_id = data, client_id
        self.store = store if store is not None else MessageStore(RecordDict())

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the sums that the message asks for and, while trees grow, the loss at
        the training rows.
        """
        part = self.data.train
        if len(part) < self.min_cell:
            raise ValueError(f"{len(part)} training rows, but min-cell = {self.min_cell}")
        sums, metrics = self.sums(forests(parameters)[0], config)
        small = int(np.abs(sums).max(initial=0)) < SMALL
        return [sums.astype(np.int32) if small else sums], len(part), metrics

    def sums(self, forest: Forest, config: Config) -> tuple[Ints, dict[str, Any]]:
        """Return the sums for the forest's next step and, while trees grow, the loss at
        the training rows.
        """
        part, x, metrics = self.data.train, self.inputs(), {}
        values = np.zeros(len(part))
        if forest.stage >= GROW:
            values = self._values(forest, x, config)
            metrics["loss"] = self._loss(values, part.y, config)
        y = part.y if self.scale is None else part.y[:, 0]
        return forest.sums(x, y, values, self.loss_name(config), self.min_cell), metrics

    def loss_name(self, config: Config) -> str:
        """Return the name of the loss."""
        return HistogramSent.from_config(config).loss

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return loss, number of test rows and measures of the finished trees on them;
        with splits by site ``global-...`` is of a site that these do not know.
        """
        own, shared = forests(parameters)
        scores = self.scores(own, self.data.test, config)
        ours = scores if own is shared else self.scores(shared, self.data.test, config)
        return scores["loss"], len(self.data.test), {**scores, **as_global(ours)}

    def scores(self, forest: Forest, part: ArraySplit, config: Config) -> Scores:
        """Return loss and measures of the finished trees on rows."""
        values = forest.values(rows_of(part))
        loss = self._loss(values, part.y, config)
        if self.scale is not None:
            predicted, y = values[:, None] * self.scale, part.y * self.scale
            errors = np.square(predicted - y)[:, 0]
            rows = row_results(part, self.center + y[:, 0], self.center + predicted[:, 0], errors)
            return {**regression_scores(predicted, y, loss), **rows}
        if values.ndim > 1:
            best = values.argmax(1)
            rows = row_results(part, part.y, best == part.y, best)
            return {**scores_of_values(values, part.y, loss, part.groups), **rows}
        scores = binary_scores(values, part.y, loss, part.groups)
        scores |= row_results(part, part.y, (values > 0) == part.y, values)
        if self.loss_name(config) == "square":
            scores.pop("group-sums", None)  # the values are no logits
        return scores

    def inputs(self) -> NDArray[np.float32]:
        """Return the training rows (n, F) that the client uses."""
        x = rows_of(self.data.train)
        if self.min_cell == 1:
            return x
        one_side = np.zeros(len(x), np.int64)
        return np.stack([merged(column, one_side, self.min_cell) for column in x.T], 1)

    def _loss(self, values: Floats, y: NDArray[Any], config: Config) -> float:
        """Return the mean loss of values (n,) or (n, outputs); in regression, the mean
        of the squared standardised errors.
        """
        if self.scale is not None:
            return float(np.square(values - y[:, 0]).mean())
        return float(LOSSES[self.loss_name(config)].mean(values.reshape(len(y), -1), y))

    def _values(self, forest: Forest, x: NDArray[np.float32], config: Config) -> Floats:
        """Return the values of the finished trees at the training rows, and keep them
        if trees are new.
        """
        kept = self.store.load(NAME, config, before=True)
        if kept is not None and len(kept[1]) == len(x):
            trees, digest = (int(number) for number in kept[0])
            if trees <= forest.finished and digest == forest.digest(trees):
                values: Floats = kept[1]
                if trees == forest.finished:
                    return values
                forest.add_to(values, x, trees)
                return self._keep(forest, values, config)
        return self._keep(forest, forest.values(x), config)

    def _keep(self, forest: Forest, values: Floats, config: Config) -> Floats:
        facts = np.array([forest.finished, forest.digest(forest.finished)], np.int64)
        self.store.save(NAME, [facts, values], config)
        return values


def forests(parameters: Arrays) -> tuple[Forest, Forest]:
    """Return the forest of a message for this site, and for unknown ones."""
    shared, own = Forest.from_arrays(parameters[: len(NAMES)]), parameters[len(NAMES) :]
    return (replace(shared, left=own[0]) if own else shared), shared


def rows_of(part: ArraySplit) -> NDArray[np.float32]:
    """Return the rows as finite float32, NaN where a value is missing."""
    return np.asarray(np.clip(part.x, -LARGEST, LARGEST), np.float32)
