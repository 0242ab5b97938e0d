"""Measures against hand-computed cases, plain definitions and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

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
    assert topk_accuracy(np.zeros((10, 10)), labels, 1) == 0.1
    assert topk_accuracy(np.zeros((10, 10)), labels, 5) == 0.5
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
    assert ece == pytest.approx(sum(weight * error for weight, error in parts))
    assert mce == pytest.approx(max(error for _, error in parts))


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
    refused(lambda: gini(np.array([1.0, -1.0])), "at least 0, the least is -1")


@pytest.mark.parametrize(
    ("n", "count"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (70, 7), (100, 10)]
)
def test_shares_take_ceil_of_a_tenth(n, count):
    values = np.random.default_rng(n).permutation(n).astype(float)
    assert worst_share(values) == pytest.approx(np.mean(range(count)))
    assert best_share(values) == pytest.approx(np.mean(range(n - count, n)))


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
    assert (
        summary["loss-worst"],
        summary["loss-worst10"],
        summary["loss-best10"],
    ) == pytest.approx((1.0, 0.95, 0.05))
    assert summary["loss-std"] == pytest.approx(losses.std())


@pytest.mark.parametrize(
    "call",
    [
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
    ],
)
def test_bad_input_is_refused(call):
    refused(call, r"need|must be")
