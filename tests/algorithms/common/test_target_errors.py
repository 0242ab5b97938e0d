import math

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score

from fedapps.algorithms.common.target_errors import error_sums, errors_of, pooled


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
    assert errors["rmse"] == pytest.approx(math.sqrt(np.mean((f - y) ** 2)))
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


def test_however_the_samples_are_grouped_the_errors_are_the_same():
    parts = [(len(y), error_sums(f, y)) for f, y in clients([3, 50, 11, 200, 1])]
    at_once, in_steps = pooled(parts), pooled([pooled(parts[:2]), pooled(parts[2:])])
    assert at_once[0] == in_steps[0]
    np.testing.assert_allclose(at_once[1], in_steps[1], rtol=1e-12)


@pytest.mark.parametrize("value", [0.1, 1e9 / 3])
def test_constant_targets_have_no_r2_whatever_rounding_says(value):
    y = np.full((7, 1), value)
    assert "r2" not in errors_of(7, error_sums(y + 0.01, y))
    assert "r2" not in errors_of(*pooled([(7, error_sums(y, y)), (3, error_sums(y[:3], y[:3]))]))


def test_the_truth_has_no_error_and_an_r2_of_1():
    _, y = clients([30])[0]
    assert errors_of(30, error_sums(y, y)) == {"rmse": 0, "mae": 0, "r2": 1}


def test_shapes_that_would_be_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"must be \(n, targets\), n > 0, and alike"):
        error_sums(np.zeros((5,)), np.zeros((5, 1)))
