"""Precision, recall and F1 are scikit-learn's; wrong counts are found."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from fedapps.algorithms.common.confusion import (
    class_measures,
    confusion_counts,
    fault,
    macro_measures,
    margins,
)

NAMES = ("precision", "recall", "f1")


@pytest.mark.parametrize("present", [range(5), (0, 3), (2,)])
def test_measures_are_those_of_scikit_learn(present):
    rng = np.random.default_rng(0)
    labels, predicted = rng.choice(list(present), 40), rng.integers(5, size=40)
    counts = confusion_counts(labels, predicted, 5)
    np.testing.assert_array_equal(counts, confusion_matrix(labels, predicted, labels=range(5)))
    with np.errstate(all="ignore"):
        wanted = precision_recall_fscore_support(
            labels, predicted, labels=range(5), zero_division=np.nan
        )
    found = class_measures(*margins(counts))
    for name, want in zip(NAMES, wanted, strict=False):
        np.testing.assert_allclose(found[name], want)
    macro = precision_recall_fscore_support(labels, predicted, average="macro", zero_division=0)
    assert list(macro_measures(*margins(counts)).values()) == pytest.approx(list(macro[:3]))


SOUND = [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("reported", "scores", "why"),
    [
        (SOUND[:3], {}, "3 numbers, but 2 classes need 4"),
        (7, {}, "1 numbers, but 2 classes need 4"),
        ([4, 1, -1, 2], {}, "below 0 or not whole"),
        ([3.5, 0.5, 0, 2], {}, "below 0 or not whole"),
        (SOUND, {"test-samples": 7}, "6 counts for 7 test samples"),
        (SOUND, {"accuracy": 0.9}, "the counts have accuracy 0.8333, the client 0.9"),
        (SOUND, {}, None),
    ],
)
def test_counts_that_cannot_be_right_are_told(reported, scores, why):
    found = fault(reported, 2, {"test-samples": 6, "accuracy": 5 / 6, **scores})
    assert found is why is None or why in found
