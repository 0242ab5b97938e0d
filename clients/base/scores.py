"""Scores of clients that need no PyTorch, and the names under which a client reports
two models.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.common.confusion import (
    MOST_CLASSES,
    confusion_counts,
    macro_measures,
    margins,
)
from fedapps.algorithms.common.measures import auroc, leading_of, lower_is_better
from fedapps.algorithms.common.target_errors import error_sums, errors_of
from fedapps.algorithms.fairness.groups import group_sums
from fedapps.clients.base.options import Config

Scores = dict[str, Any]
#: What each test sample had, flattened: three numbers a sample (:func:`row_results`).
ROWS, ROW_COLUMNS = "test-rows", ("label", "right", "value")
#: Of a client, the results of at most this many samples are reported.
MOST_ROWS = 3000
#: The list of ``algorithms.common.target_errors.error_sums``, flattened.
ERROR_SUMS = "error-sums"
#: The counts of ``algorithms.common.confusion``, flattened; only with ``class-counts``.
CONFUSION = "confusion"


def row_results(
    data: Any, labels: NDArray[Any], right: NDArray[Any], values: NDArray[Any]
) -> Scores:
    """Return what each sample of a split with ``rows`` had, else {}: label, whether it
    was right (or which share of it), value; of the first ``MOST_ROWS`` samples.

    The values (n,) are logits of label 1, squared errors, or risks; of these the label
    is the time and right whether the event happened.
    """
    if not data.rows:
        return {}
    table = np.stack([np.asarray(part, np.float64) for part in (labels, right, values)], 1)
    return {ROWS: table[:MOST_ROWS].ravel().tolist()}


def as_global(scores: Scores) -> dict[str, float]:
    """Return leading score and loss under the names for the global model (personalised
    methods report both models).
    """
    name = leading_of(scores)
    return {f"global-{name}": scores[name], "global-loss": scores["loss"]}


class ScoresValidation(NumPyClient):
    """Base of clients whose ``evaluate`` scores ``data.test``, and can score validation
    samples instead.
    """

    data: Any

    def evaluate_validation(self, parameters: Arrays, config: Config) -> dict[str, float]:
        """Return what :meth:`evaluate` reports as leading score and loss, on the
        validation samples and named ``validation-...``; {} if the client has none.
        """
        data = self.data
        if data.validation is data.train or not len(data.validation):
            return {}
        self.data = replace(data, test=data.validation)
        try:
            loss, _, metrics = self.evaluate(parameters, {**config, "train-loss": False})
        finally:
            self.data = data
        name = leading_of(metrics)
        return {f"validation-{name}": float(metrics[name]), "validation-loss": loss}


def higher_is_better(scores: Scores) -> float:
    """Return the leading score, or its negative where lower is better."""
    name = leading_of(scores)
    return -float(scores[name]) if lower_is_better(name) else float(scores[name])


def regression_scores(
    predicted: NDArray[np.float64], targets: NDArray[np.float64], loss: float
) -> Scores:
    """Return loss, rmse, mae, r2 and error-sums of predictions and targets (n,
    targets), in the targets' own units.
    """
    sums = error_sums(predicted, targets)
    return {
        **errors_of(len(targets), sums),
        "loss": loss,
        "test-samples": len(targets),
        ERROR_SUMS: sums.ravel().tolist(),
    }


def scores_of_values(
    values: NDArray[np.float64],
    labels: NDArray[np.int64],
    loss: float,
    groups: NDArray[np.bool_] | None,
) -> Scores:
    """Return accuracy, loss and those of :func:`class_scores` of values (n, classes),
    the logarithms of probabilities up to a constant.
    """
    predicted = values.argmax(1)
    accuracy = float((predicted == labels).mean())
    out: Scores = {"accuracy": accuracy, "loss": loss, "test-samples": len(labels)}
    out |= class_scores(labels, predicted, values.shape[1])
    if groups is None:
        return out
    powers = np.exp(values - values.max(1, keepdims=True))
    likely = powers.max(1) / powers.sum(1)
    sums = group_sums(labels, predicted, likely, groups, values.shape[1])
    return out | {"group-sums": sums.ravel().tolist()}


def class_scores(
    labels: NDArray[np.integer], predicted: NDArray[np.integer], classes: int
) -> Scores:
    """Return macro-precision, macro-recall and macro-f1 of labels (n,) and predicted
    classes (n,), and of few classes their counts.
    """
    labels, predicted = labels.astype(np.int64), predicted.astype(np.int64)
    if classes > MOST_CLASSES:
        sizes = (labels, predicted, labels[labels == predicted])
        actual, found, hits = (np.bincount(values, minlength=classes) for values in sizes)
        return {**macro_measures(actual, found, hits)}
    counts = confusion_counts(labels, predicted, classes)
    return {**macro_measures(*margins(counts)), CONFUSION: counts.ravel().tolist()}


def binary_scores(
    logits: NDArray[np.float64],
    labels: NDArray[np.int64],
    loss: float,
    groups: NDArray[np.bool_] | None,
) -> Scores:
    """Return accuracy, loss, auroc and those of :func:`class_scores` of logits (n,) of
    label 1; auroc is omitted if it is undefined (a single class, or NaN).

    A logit of 0 predicts class 0, as ties go to the first class elsewhere. A NaN logit
    counts as wrong.
    """
    right = ((logits > 0) == (labels == 1)) & ~np.isnan(logits)
    out: Scores = {"accuracy": float(right.mean()), "loss": loss, "test-samples": len(labels)}
    if not np.isnan(logits).any():
        out |= class_scores(labels, (logits > 0).astype(np.int64), 2)
        if 0 < labels.sum() < len(labels):
            out["auroc"] = auroc(logits, labels)
    if groups is None:
        return out
    likely = 0.5 + 0.5 * np.tanh(0.5 * np.abs(logits))  # the probability of the predicted class
    return out | {
        "group-sums": group_sums(labels, (logits > 0).astype(np.int64), likely, groups, 2)
        .ravel()
        .tolist()
    }
