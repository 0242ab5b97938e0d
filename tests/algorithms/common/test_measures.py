"""Measures against hand-computed cases, plain definitions and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import (
    confusion_matrix,
    mean_absolute_error,
    precision_recall_fscore_support,
    r2_score,
    top_k_accuracy_score,
)

from fedapps.algorithms.common.confusion import (
    class_measures,
    confusion_counts,
    fault as counts_fault,
    macro_measures,
    margins,
)
from fedapps.algorithms.common.measures import (
    auroc,
    best_share,
    calibration_errors,
    describe_clients,
    gini,
    parity_gap,
    topk_accuracy,
    worst_share,
)
from fedapps.algorithms.common.survival import concordance, fault, pair_counts
from fedapps.algorithms.common.target_errors import error_sums, errors_of, pooled
from fedapps.algorithms.fairness.groups import (
    Groups,
    add_up,
    group_gaps,
    group_measures,
    group_sums,
)
from tests.helpers import refused


@pytest.mark.parametrize("k", [1, 2, 5])
def test_topk_equals_scikit_learn(k):
    rng = np.random.default_rng(k)
    scores, labels = rng.normal(size=(300, 7)), rng.integers(7, size=300)
    assert topk_accuracy(scores, labels, k) == pytest.approx(
        top_k_accuracy_score(labels, scores, k=k, labels=np.arange(7)), abs=1e-12
    )


def test_ties_and_nan_gain_nothing():
    labels = np.arange(10)
    assert [topk_accuracy(np.zeros((10, 10)), labels, k) for k in (1, 5)] == [0.1, 0.5]
    assert topk_accuracy(np.full((10, 10), np.nan), labels, 1) == 0.0


def test_calibration_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet(np.full(4, 0.5), 500), rng.integers(4, size=500)
    parts = []
    for b in range(15):
        members = [
            (max(row), float(list(row).index(max(row)) == label))
            for row, label in zip(probabilities, labels, strict=True)
            if b / 15 < max(row) <= (b + 1) / 15
        ]
        if members:
            confidence, right = np.mean(members, axis=0)
            parts.append((len(members) / 500, abs(right - confidence)))
    assert sum(weight for weight, _ in parts) == pytest.approx(1)
    ece, mce = calibration_errors(probabilities, labels)
    assert (ece, mce) == pytest.approx(
        (sum(weight * error for weight, error in parts), max(error for _, error in parts))
    )


def test_perfect_calibration_is_zero_and_overconfidence_is_not():
    probabilities = np.tile([0.75, 0.25], (100, 1))
    labels = np.array([0] * 75 + [1] * 25)
    assert calibration_errors(probabilities, labels) == pytest.approx((0, 0), abs=1e-12)
    certain = np.tile(np.array([1.0, 0.0], np.float32), (100, 1))
    assert calibration_errors(certain, labels) == pytest.approx((0.25, 0.25))
    assert calibration_errors(certain * np.float32(1.0000001), labels) == pytest.approx(
        (0.25, 0.25), abs=1e-6
    )


@pytest.mark.parametrize("levels", [3, 10, 10**6])
def test_auroc_is_the_share_of_pairs(levels):
    """Few levels: many ties."""
    rng = np.random.default_rng(levels)
    labels = rng.integers(2, size=120)
    scores = rng.integers(levels, size=120) + (labels * levels) // 5
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auroc(scores, labels) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_gini_by_hand_and_by_definition():
    assert (gini(np.full(7, 0.3)), gini(np.zeros(4))) == (pytest.approx(0, abs=1e-15), 0)
    assert gini(np.array([0, 0, 0, 8.0])) == pytest.approx(3 / 4)
    values = np.random.default_rng(1).gamma(1.0, size=50)
    assert gini(values) == pytest.approx(
        np.abs(values[:, None] - values[None, :]).mean() / (2 * values.mean())
    )


@pytest.mark.parametrize(
    ("n", "count"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (70, 7), (100, 10)]
)
def test_shares_take_ceil_of_a_tenth(n, count):
    values = np.random.default_rng(n).permutation(n).astype(float)
    assert (worst_share(values), best_share(values)) == pytest.approx(
        (np.mean(range(count)), np.mean(range(n - count, n)))
    )


def test_share_is_not_rounded_up_by_floating_point():
    assert 0.07 * 100 > 7
    assert worst_share(np.arange(100.0), 0.07) == pytest.approx(np.mean(range(7)))


def test_describe_and_parity_gap():
    values = np.array([0.2, 0.4, 0.6, 0.8])
    assert parity_gap(values) == pytest.approx(0.6)
    assert describe_clients(values, "accuracy") == pytest.approx(
        {
            "accuracy-mean": 0.5,
            "accuracy-std": np.sqrt((0.09 + 0.01 + 0.01 + 0.09) / 4),
            "accuracy-worst10": 0.2,
            "accuracy-best10": 0.8,
            "accuracy-worst": 0.2,
        }
    )
    assert worst_share(values, 1.0) == best_share(values, 1.0) == pytest.approx(0.5)


def test_the_worst_losses_are_the_highest():
    """Eleven clients: a tenth are two."""
    losses = np.random.default_rng(0).permutation([0.1 * k for k in range(11)])
    summary = describe_clients(losses, "loss", loss=True)
    assert [summary[f"loss-{name}"] for name in ("worst", "worst10", "best10", "std")] == (
        pytest.approx([1.0, 0.95, 0.05, losses.std()])
    )


# --- pooled scores --------------------------------------------------------------------

# From counts and sums of clients: concordance, precision and recall, errors of numbers.


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
    assert {name: errors[name] for name in ("rmse", "mae", "r2")} == pytest.approx(
        {
            "rmse": np.sqrt(np.mean((f - y) ** 2)),
            "mae": mean_absolute_error(y, f),
            "r2": r2_score(y, f),
        }
    )


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (call, r"need|must be")
            for call in [
                lambda: gini(np.array([])),
                lambda: describe_clients(np.zeros((2, 2)), "x"),
                lambda: topk_accuracy(np.zeros((0, 3)), np.zeros(0, int)),
                lambda: topk_accuracy(np.zeros((3, 3)), np.zeros(2, int)),
                lambda: calibration_errors(np.zeros((3, 3)), np.zeros(2, int)),
                lambda: worst_share(np.ones(3), 0.0),
                lambda: auroc(np.ones(3), np.ones(3, int)),
                lambda: auroc(np.array([1.0, np.nan]), np.array([0, 1])),
                lambda: auroc(np.ones(2), np.array([1, 2])),
                lambda: auroc(np.ones((3, 1)), np.array([1, 0, 1])),
            ]
        ),
        (
            lambda: error_sums(np.zeros((5,)), np.zeros((5, 1))),
            r"must be \(n, targets\), n > 0, and alike",
        ),
        (lambda: gini(np.array([1.0, -1.0])), "at least 0, the least is -1"),
    ],
)
def test_bad_input_is_refused(call, message):
    refused(call, message)


# --- measures by group ----------------------------------------------------------------

# By hand, against plain definitions on the pooled samples, and the rejection of
# impossible sums.


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
        assert (row["accuracy"], row["ece"]) == pytest.approx(
            (hits.sum() / n, calibration_errors(probabilities[inside], labels[inside])[0])
        )
        for name, rate in rates.items():
            gaps[name].append(rate)
            if name != "selected" or classes == 2:
                assert row[name] == pytest.approx(rate[1] if classes == 2 else rate.mean())
    by_class = {
        name: np.ptp(np.array(rates), axis=0)[1 if classes == 2 else 0 :]
        for name, rates in gaps.items()
    }
    wanted = {
        "demographic-parity-gap": by_class["selected"].mean(),
        "group-tpr-gap": by_class["tpr"].mean(),
        "group-fpr-gap": by_class["fpr"].mean(),
        "equalised-odds-gap": np.maximum(by_class["tpr"], by_class["fpr"]).mean(),
    }
    found = group_gaps(total, groups)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


def test_what_a_group_has_no_samples_for_is_left_out():
    # Group a has no sample of class 1, group b none at all, group c both classes.
    labels, predicted = np.array([0, 0, 1, 0]), np.array([0, 1, 1, 1])
    members = np.array(
        [[True, False, False], [True, False, False], [False, False, True], [False, False, True]]
    )
    groups = Groups(("a", "b", "c"), 2)
    sums = group_sums(labels, predicted, np.full(4, 0.6), members, 2)
    a, b, c = group_measures(sums, groups)
    assert ("tpr" in a, a["fpr"]) == (False, 0.5)
    assert b == {"samples": 0, "right": 0, "tp": 0, "fp": 0, "fn": 0, "tn": 0}
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
