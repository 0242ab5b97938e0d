"""The centring's sums against a direct computation, for any way of dealing the
observations.
"""

import numpy as np
import pytest

from fedapps.algorithms.frank_wolfe.centering import DAMPING, Centering, Table, answer
from tests.helpers import refused

SHAPE = (9, 7)


def table(m, seed):
    rng = np.random.default_rng(seed)
    rows, columns = np.divmod(rng.choice(63, m, replace=False), 7)
    return Table(rows, columns, 3.0 + 0.3 * rows - 0.2 * columns + rng.normal(size=m))


def dealt(whole, parts):
    blocks = np.array_split(np.random.default_rng(0).permutation(len(whole.values)), parts)
    return [Table(*(column[block] for column in whole)) for block in blocks]


def centred(train, test, parts=1, kind="bias", limits=(-np.inf, np.inf)):
    """Run all stages with training and test observations dealt to this many clients."""
    centering = Centering(SHAPE, kind)
    clients = list(zip(dealt(train, parts), dealt(test, parts), strict=True))
    while stage := centering.stage:
        answers = [
            answer(stage, centering.question(), *client, SHAPE, limits) for client in clients
        ]
        assert all([array.shape for array in a] == centering.shapes() for a in answers)
        centering.take([np.sum(arrays, axis=0) for arrays in zip(*answers, strict=True)])
    return centering


def biases(train):
    """Koren's damped biases, in a few lines: columns first, then rows of what is
    left.
    """
    mean = train.values.mean()
    columns, rows = np.zeros(7), np.zeros(9)
    for j in range(7):
        rest = train.values[train.columns == j] - mean
        columns[j] = rest.sum() / (len(rest) + DAMPING)
    left = train.values - mean - columns[train.columns]
    for i in range(9):
        rest = left[train.rows == i]
        rows[i] = rest.sum() / (len(rest) + DAMPING)
    return mean, rows, columns


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_constants_are_those_of_all_observations_however_they_are_dealt(parts):
    train, test = table(40, 1), table(20, 2)
    mean, rows, columns = biases(train)
    centred_constants = centred(train, test, parts).constants()
    np.testing.assert_allclose(centred_constants["rows"], mean + rows)
    np.testing.assert_allclose(centred_constants["columns"], columns)
    left = train.values - mean - rows[train.rows] - columns[train.columns]
    assert centred_constants["scale"][0] == pytest.approx(np.sqrt(np.mean(left**2)))


def test_centring_by_the_mean_and_by_nothing():
    train, test = table(40, 1), table(20, 2)
    centred_constants = centred(train, test, 3, "mean").constants()
    np.testing.assert_allclose(centred_constants["rows"], train.values.mean())
    assert not centred_constants["columns"].any()
    assert centred_constants["scale"][0] == pytest.approx(train.values.std())
    assert centred(train, test, 3, "none").constants() == {}


@pytest.mark.parametrize("kind", ["none", "mean", "bias"])
def test_the_errors_of_predictors_are_those_on_all_test_observations(kind):
    train, test, limits = table(40, 1), table(20, 2), (2.0, 5.0)
    mean, rows, columns = biases(train)
    by_row = [
        np.sum(train.values[train.rows == i] - mean) / (np.sum(train.rows == i) + DAMPING)
        for i in range(9)
    ]
    guesses = {
        "mean": np.full(20, mean),
        "rows": mean + np.array(by_row)[test.rows],
        "columns": mean + columns[test.columns],
        "biases": mean + rows[test.rows] + columns[test.columns],
    }
    wanted = {
        name: np.sqrt(np.mean((np.clip(guess, *limits) - test.values) ** 2))
        for name, guess in guesses.items()
    }
    wanted["zero"] = np.sqrt(np.mean(test.values**2))
    assert centred(train, test, 4, kind, limits).metrics() == pytest.approx(
        {f"test-rmse-of-{name}": error for name, error in wanted.items()}
    )


def test_a_row_without_observations_has_the_mean():
    train, test = table(40, 1), table(20, 2)
    kept = train.rows != 4
    train = Table(*(column[kept] for column in train))
    assert centred(train, test, 2).constants()["rows"][4] == pytest.approx(train.values.mean())


def test_constant_observations_leave_nothing_and_divide_by_nothing():
    train, test = (
        t._replace(values=np.full_like(t.values, 2.0)) for t in (table(40, 1), table(20, 2))
    )
    for kind in ("mean", "bias"):
        result = centred(train, test, 2, kind)
        assert result.constants()["scale"][0] > 0
        assert result.metrics()["test-rmse-of-biases"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Centering(SHAPE).take([np.zeros(3)]), "no training observations"),
        (lambda: Centering(SHAPE, "median"), r"center = .median."),
    ],
)
def test_nothing_to_centre_is_said(call, message):
    refused(call, message)
