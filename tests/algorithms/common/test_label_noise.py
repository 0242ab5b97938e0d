"""Label noise: the transition matrices that the kinds are defined by."""

import numpy as np
import pytest

from fedapps.algorithms.common.partitioners import KINDS, flipped
from tests.helpers import refused


def transitions(kind, ratio, classes=5, each=20_000):
    """Return the share of each class (row) that became each class (column)."""
    labels = np.repeat(np.arange(classes), each)
    table = np.zeros((classes, classes))
    np.add.at(
        table, (labels, flipped(labels, classes, kind, ratio, np.random.default_rng(3))), 1 / each
    )
    return table


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.6])
def test_the_transition_matrices(ratio):
    own = np.eye(5) * (1 - ratio)
    np.testing.assert_allclose(
        transitions("pair", ratio), own + ratio * np.roll(np.eye(5), 1, axis=1), atol=0.015
    )
    np.testing.assert_allclose(
        transitions("symmetric", ratio), own + ratio / 4 * (1 - np.eye(5)), atol=0.015
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_at_one_ratio_is_wrong_at_every_larger_one(kind):
    labels = np.random.default_rng(0).integers(0, 7, 500)
    little, much = (
        flipped(labels, 7, kind, ratio, np.random.default_rng(1)) for ratio in (0.1, 0.5)
    )
    at = little != labels
    assert 0 < at.sum() < (much != labels).sum()
    assert np.array_equal(little[at], much[at])


@pytest.mark.parametrize(
    ("classes", "kind", "ratio", "why"),
    [
        (2, "pair", -0.1, r"noise-ratio = .*: choose a value in \[0, 1\)"),
        (2, "pair", 1.0, r"noise-ratio = .*: choose a value in \[0, 1\)"),
        (2, "pair", float("nan"), r"noise-ratio = .*: choose a value in \[0, 1\)"),
        (2, "pairs", 0.1, "noise = 'pairs': did you mean 'pair'"),
        (1, "pair", 0.1, "two classes"),
    ],
)
def test_what_cannot_be(classes, kind, ratio, why):
    rng = np.random.default_rng(0)
    refused(lambda: flipped(np.zeros(3, np.int64), classes, kind, ratio, rng), why)
