"""Scores from counts and sums of clients: concordance, precision and
recall, errors of numbers.
"""

import numpy as np
import pytest
from sklearn.metrics import (
    confusion_matrix,
    mean_absolute_error,
    precision_recall_fscore_support,
    r2_score,
)

from fedapps.algorithms.common.confusion import (
    class_measures,
    confusion_counts,
    fault as counts_fault,
    macro_measures,
    margins,
)
from fedapps.algorithms.common.survival import concordance, fault, pair_counts
from fedapps.algorithms.common.target_errors import error_sums, errors_of, pooled


def drawn(seed, n=60):
    rng = np.random.default_rng(seed)  # few values, so that times and risks have ties
    return (
        rng.integers(9, size=n) * 1.0,
        rng.integers(2, size=n) * 1.0,
        rng.integers(7, size=n) * 0.5,
    )


def by_pairs(times, events, risks):
    counts = [0, 0, 0]
    for i in range(len(times)):
        for j in range(len(times)):
            if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j])):
                counts[0 if risks[i] > risks[j] else 1 if risks[i] < risks[j] else 2] += 1
    return tuple(counts)


@pytest.mark.parametrize("seed", range(8))
def test_pairs_are_those_of_the_quadratic_loop_in_any_order_of_rows(seed):
    subjects = drawn(seed)
    order = np.random.default_rng(seed).permutation(60)
    assert pair_counts(*subjects) == by_pairs(*subjects)
    assert pair_counts(*(part[order] for part in subjects)) == by_pairs(*subjects)


@pytest.mark.parametrize(
    ("events", "risks", "wanted"),
    [
        (np.ones(5), -np.arange(5.0), 1),
        (np.ones(5), np.arange(5.0), 0),
        (np.ones(5), np.zeros(5), 0.5),
        (np.zeros(5), np.arange(5.0), None),
    ],
)
def test_concordance_of_perfect_reversed_constant_and_no_risks(events, risks, wanted):
    assert concordance(pair_counts(np.arange(5.0), events, risks)) == wanted


@pytest.mark.parametrize(
    "counts", [[1, 2], [1, 2, -1], [1, 2, 0.5], [1, 2, float("nan")], [30, 5, 2], "many"]
)
def test_counts_that_no_subjects_could_have_are_named(counts):
    assert fault(counts, 9)
    assert not fault([30, 5, 1], 9)


# --- confusion ------------------------------------------------------------------------

# Precision, recall and F1 are scikit-learn's; wrong counts are found.


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
    found = counts_fault(reported, 2, {"test-samples": 6, "accuracy": 5 / 6, **scores})
    assert found is why is None or why in found


# --- target errors --------------------------------------------------------------------


def clients(sizes, targets=1, shift=0.0, seed=0):
    """Predictions and targets of several clients, whose means and errors differ."""
    rng = np.random.default_rng(seed)
    parts = []
    for place, size in enumerate(sizes):
        y = shift + 5 * rng.normal() + rng.normal(size=(size, targets))
        parts.append((y + rng.normal(scale=0.5 * (place + 1), size=y.shape), y))
    return parts


@pytest.mark.parametrize("targets", [1, 3])
def test_the_errors_of_a_set_are_those_that_scikit_learn_finds(targets):
    ((f, y),) = clients([40], targets)
    errors = errors_of(40, error_sums(f, y))
    assert errors["rmse"] == pytest.approx(np.sqrt(np.mean((f - y) ** 2)))
    assert errors["mae"] == pytest.approx(mean_absolute_error(y, f))
    assert errors["r2"] == pytest.approx(r2_score(y, f))


@pytest.mark.parametrize(("shift", "targets"), [(0.0, 1), (1e6, 1), (0.0, 3)])
def test_pooled_errors_are_those_of_the_union_of_the_samples(shift, targets):
    parts = clients([3, 50, 11, 200], targets, shift)
    f, y = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    count, sums = pooled([(len(own), error_sums(guess, own)) for guess, own in parts])
    assert count == len(y)
    union, together = errors_of(count, error_sums(f, y)), errors_of(count, sums)
    assert together == pytest.approx(union, rel=1e-9)
    assert together["r2"] == pytest.approx(r2_score(y, f), rel=1e-9)


@pytest.mark.parametrize("value", [0.1, 1e9 / 3])
def test_constant_targets_have_no_r2_whatever_rounding_says(value):
    y = np.full((7, 1), value)
    assert "r2" not in errors_of(7, error_sums(y + 0.01, y))
    assert "r2" not in errors_of(*pooled([(7, error_sums(y, y)), (3, error_sums(y[:3], y[:3]))]))


def test_shapes_that_would_be_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"must be \(n, targets\), n > 0, and alike"):
        error_sums(np.zeros((5,)), np.zeros((5, 1)))
