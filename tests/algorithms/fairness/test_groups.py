"""Measures by group: by hand, against plain definitions on the pooled samples, and the
rejection of impossible sums.
"""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from fedapps.algorithms.common.measures import calibration_errors
from fedapps.algorithms.fairness.groups import (
    Groups,
    add_up,
    group_gaps,
    group_measures,
    group_sums,
)


def sums_of(probabilities, labels, members):
    return group_sums(
        labels, probabilities.argmax(1), probabilities.max(1), members, probabilities.shape[1]
    )


def samples(n, classes, groups, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * 2
    return (
        (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)),
        rng.integers(classes, size=n),
        np.eye(groups, dtype=bool)[rng.integers(groups, size=n)],
    )


def test_two_groups_by_hand():
    # Group a: labels 1 1 0 0, predictions 1 0 1 0; group b: labels 1 1 1 0 0,
    # predictions 1 1 1 0 0. One sample is of neither.
    labels = np.array([1, 1, 0, 0, 1, 1, 1, 0, 0, 1])
    members = np.array([[g == "a", g == "b"] for g in "aaaabbbbb-"])
    groups = Groups(("a", "b"), 2)
    sums = group_sums(
        labels, np.array([1, 0, 1, 0, 1, 1, 1, 0, 0, 0]), np.full(10, 0.8), members, 2
    )
    names = (
        "samples",
        "right",
        "tp",
        "fp",
        "fn",
        "tn",
        "accuracy",
        "selected",
        "tpr",
        "fpr",
        "ece",
    )
    a, b = group_measures(sums, groups)
    assert a == pytest.approx(
        dict(zip(names, (4, 2, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.3), strict=True))
    )
    assert b == pytest.approx(dict(zip(names, (5, 5, 3, 0, 0, 2, 1, 0.6, 1, 0, 0.2), strict=True)))
    assert group_gaps(sums, groups) == pytest.approx(
        {
            "group-accuracy-worst": 0.5,
            "group-accuracy-gap": 0.5,
            "demographic-parity-gap": 0.1,
            "group-tpr-gap": 0.5,
            "group-fpr-gap": 0.5,
            "equalised-odds-gap": 0.5,
            "group-ece-worst": 0.3,
        }
    )


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_sums_of_clients_give_the_measures_of_their_samples_together(classes):
    """Of five clients of different sizes; references from scikit-learn and from the
    calibration error of a whole set.
    """
    parts = [samples(n, classes, 3, seed) for seed, n in enumerate((5, 40, 11, 90, 60))]
    groups = Groups(("a", "b", "c"), classes)
    total = add_up([sums_of(*part).ravel().tolist() for part in parts], groups)
    probabilities, labels, members = (np.concatenate([part[i] for part in parts]) for i in range(3))
    np.testing.assert_allclose(total, sums_of(probabilities, labels, members))
    gaps = {"selected": [], "tpr": [], "fpr": []}
    for g, row in enumerate(group_measures(total, groups)):
        inside = members[:, g]
        table = confusion_matrix(
            labels[inside], probabilities[inside].argmax(1), labels=range(classes)
        )  # row: class, column: predicted
        hits, n = np.diag(table), table.sum()
        rates = {
            "selected": table.sum(0) / n,
            "tpr": hits / table.sum(1),
            "fpr": (table.sum(0) - hits) / (n - table.sum(1)),
        }
        assert row["accuracy"] == pytest.approx(hits.sum() / n)
        assert row["ece"] == pytest.approx(
            calibration_errors(probabilities[inside], labels[inside])[0]
        )
        for name, rate in rates.items():
            gaps[name].append(rate)
            if name != "selected" or classes == 2:
                assert row[name] == pytest.approx(rate[1] if classes == 2 else rate.mean())
    by_class = {
        name: np.ptp(np.array(rates), axis=0)[1 if classes == 2 else 0 :]
        for name, rates in gaps.items()
    }
    gap_of = group_gaps(total, groups)
    assert gap_of["demographic-parity-gap"] == pytest.approx(by_class["selected"].mean())
    assert gap_of["group-tpr-gap"] == pytest.approx(by_class["tpr"].mean())
    assert gap_of["group-fpr-gap"] == pytest.approx(by_class["fpr"].mean())
    assert gap_of["equalised-odds-gap"] == pytest.approx(
        np.maximum(by_class["tpr"], by_class["fpr"]).mean()
    )


def test_what_a_group_has_no_samples_for_is_left_out():
    # Group a has no sample of class 1, group b none at all, group c both classes.
    labels, predicted = np.array([0, 0, 1, 0]), np.array([0, 1, 1, 1])
    members = np.array(
        [[True, False, False], [True, False, False], [False, False, True], [False, False, True]]
    )
    groups = Groups(("a", "b", "c"), 2)
    sums = group_sums(labels, predicted, np.full(4, 0.6), members, 2)
    a, b, c = group_measures(sums, groups)
    assert "tpr" not in a
    assert (a["fpr"], b) == (0.5, {"samples": 0, "right": 0, "tp": 0, "fp": 0, "fn": 0, "tn": 0})
    assert (c["tpr"], c["fpr"]) == (1, 1)
    gaps = group_gaps(sums, groups)
    assert "group-tpr-gap" not in gaps
    assert (gaps["group-fpr-gap"], gaps["equalised-odds-gap"]) == (0.5, 0.5)
    assert group_gaps(sums * [[1.0], [1.0], [0.0]], groups) == {}  # one group alone


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.ravel()[:-1], "numbers, but 2 groups need 51 each"),
        (lambda s: s, "numbers, but"),
        (lambda s: np.where(s == s.max(), np.nan, s).ravel(), "not finite"),
        (lambda s: (-s).ravel(), "below 0"),
        (lambda s: (s * 1.5).ravel(), "not whole"),
        (lambda s: (s + np.eye(2, 51)).ravel(), "different numbers of samples"),
        (lambda s: (s * [[1] * 4 + [9] * 2 + [1] * 45]).ravel(), "more samples are right"),
        (lambda s: (s * [[1] * 4 + [0] * 2 + [1] * 45]).ravel(), "different numbers of right"),
        (lambda s: (s * [[1] * 36 + [9] * 15]).ravel(), "above 1"),
    ],
)
def test_what_no_samples_can_add_up_to_is_told(change, reason):
    groups = Groups(("a", "b"), 2)
    sums = sums_of(*samples(50, 2, 2, 1))
    assert groups.fault(sums.ravel().tolist()) is None
    assert reason in groups.fault(change(sums).tolist())
