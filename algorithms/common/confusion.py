"""Precision, recall and F1 of a classifier, from counts of actual and predicted
classes.

With n_ij the number of samples of class i that are predicted as j,

    precision_c = n_cc / sum_i n_ic      recall_c = n_cc / sum_j n_cj
    F1_c = 2 n_cc / (sum_i n_ic + sum_j n_cj)

A macro mean is taken over the classes that occur among the labels or the predictions,
every class counting once; what is 0 / 0 counts as 0. Counts of several clients add up,
so the measures of their sum are those of all samples together.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
#: Of more classes a client sends no counts: C x C numbers.
MOST_CLASSES = 100


def confusion_counts(labels: Ints, predicted: Ints, classes: int) -> Ints:
    """Return n_ij (C, C) of samples with these classes (n,) and predicted ones (n,)."""
    return np.bincount(classes * labels + predicted, minlength=classes**2).reshape(classes, classes)


def class_measures(actual: Ints, predicted: Ints, hits: Ints) -> dict[str, Floats]:
    """Return precision, recall and F1 (C,); NaN where there is no sample to divide by.

    ``actual``, ``predicted``, ``hits`` (C,): samples of each class, samples predicted
    as it, samples that are both.
    """
    return {
        name: np.divide(upper, lower, out=np.full(len(hits), np.nan), where=lower > 0)
        for name, upper, lower in (
            ("precision", hits, predicted),
            ("recall", hits, actual),
            ("f1", 2 * hits, actual + predicted),
        )
    }


def macro_measures(actual: Ints, predicted: Ints, hits: Ints) -> dict[str, float]:
    """Return ``macro-precision``, ``macro-recall`` and ``macro-f1`` of these counts."""
    occurs = actual + predicted > 0
    return {
        f"macro-{name}": float(np.nan_to_num(values[occurs]).mean())
        for name, values in class_measures(actual, predicted, hits).items()
    }


def margins(counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the actual classes, the predicted ones and the hits (C,) of n_ij."""
    return counts.sum(1), counts.sum(0), counts.diagonal()


def fault(reported: object, classes: int, scores: dict[str, object]) -> str | None:
    """Return why a client's list cannot be the n_ij of its test samples, or ``None``.

    ``scores``: its ``test-samples`` and ``accuracy``, which the counts must have, too.
    """
    if not isinstance(reported, Sequence) or len(reported) != classes**2:
        size = len(reported) if isinstance(reported, Sequence) else 1
        return f"{size} numbers, but {classes} classes need {classes**2}"
    counts = np.asarray(reported, np.float64)
    if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts % 1 == 0).all()):
        return "a count is below 0 or not whole"
    if counts.sum() != scores.get("test-samples"):
        return f"{counts.sum():g} counts for {scores.get('test-samples')} test samples"
    right = counts.reshape(classes, classes).trace() / max(1.0, counts.sum())
    if abs(right - float(str(scores.get("accuracy", "nan")))) > 1e-6:
        return f"the counts have accuracy {right:.4f}, the client {scores.get('accuracy')}"
    return None
