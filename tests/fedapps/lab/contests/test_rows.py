"""Measures of rows, the influence of each row, and the intervals of gains."""

import math

import numpy as np
import pytest

from fedapps.algorithms.common.measures import auroc
from fedapps.algorithms.common.survival import concordance, pair_counts
from fedapps.lab.contests.rows import Gain, below, gain, measured
from fedapps.lab.contests.verdict import decided
from fedapps.lab.results.seeds import Interval, t_interval

RNG = np.random.default_rng(3)


def rows_of(n, measure, rng=RNG):
    label = rng.integers(3 if measure == "macro-recall" else 2, size=n).astype(float)
    right = rng.integers(2, size=n).astype(float)
    value = rng.normal(size=n) + label
    if measure == "concordance":
        label = rng.exponential(size=n)
    return np.stack([label, right, value**2 if measure == "rmse" else value], 1)


def test_measures_are_those_of_a_run():
    rows, times, three = (rows_of(40, m) for m in ("auroc", "concordance", "macro-recall"))
    tied = rows.copy()
    tied[5, 2] = tied[6, 2]
    for measure, given, wanted in (
        ("accuracy", rows, rows[:, 1].mean()),
        ("rmse", rows, -math.sqrt(rows[:, 2].mean())),
        ("auroc", rows, auroc(rows[:, 2], rows[:, 0].astype(int))),
        ("auroc", tied, auroc(tied[:, 2], tied[:, 0].astype(int))),
        ("concordance", times, concordance(pair_counts(*times.T))),
        ("macro-recall", three, np.mean([three[three[:, 0] == c, 1].mean() for c in range(3)])),
    ):
        assert measured([given], measure)[0] == pytest.approx(wanted), measure


def test_pairs_are_within_folds_since_folds_have_models_of_their_own():
    first, second = rows_of(20, "auroc"), rows_of(30, "auroc")
    both = measured([first, second], "auroc")
    assert both[0] == measured([first, second + np.array([0, 0, 100.0])], "auroc")[0]
    n = [rows[:, 0].sum() * (1 - rows[:, 0]).sum() for rows in (first, second)]
    each = [measured([rows], "auroc")[0] for rows in (first, second)]
    assert both[0] == pytest.approx(np.average(each, weights=n))
    alone = np.array([[1.0, 1.0, 0.3]])
    assert measured([first, alone], "auroc")[0] == each[0]
    assert math.isnan(measured([alone], "auroc")[0])


@pytest.mark.parametrize("measure", ["accuracy", "macro-recall", "rmse", "auroc", "concordance"])
def test_a_measure_is_the_mean_of_its_influences_to_first_order(measure):
    """The derivative by the weight of a row: rows are repeated, one once more often."""
    folds = [rows_of(25, measure), rows_of(25, measure)]
    value, phi = measured(folds, measure)
    influence = np.concatenate(phi)
    assert [len(one) for one in phi] == [25, 25]
    assert influence.mean() == pytest.approx(value)
    often = 60
    for row in (0, 7, 24):
        many = [np.repeat(folds[0], often, axis=0), np.repeat(folds[1], often, axis=0)]
        base = measured(many, measure)[0]
        many[0] = np.concatenate([many[0], folds[0][row : row + 1]])
        moved = (measured(many, measure)[0] - base) * (50 * often + 1)
        if measure == "accuracy":
            assert moved == pytest.approx(influence[row] - value, abs=1e-9)
        else:
            assert moved == pytest.approx(influence[row] - value, abs=0.05)


def test_the_variance_of_an_auroc_is_delongs():
    rows = rows_of(30, "auroc")
    yes, no = rows[rows[:, 0] == 1, 2], rows[rows[:, 0] == 0, 2]
    above = (yes[:, None] > no).astype(float)
    by_hand = above.mean(1).var() / len(yes) + above.mean(0).var() / len(no)
    _, (phi,) = measured([rows], "auroc")
    assert phi.var() / len(phi) == pytest.approx(by_hand)


def folds(values):
    """Rows of two clients in two folds whose shares of right answers are given."""
    return [
        {k: np.stack([np.zeros(4), v, np.zeros(4)], 1) for k, v in fold.items()} for fold in values
    ]


ONE, TWO = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.0, 0.5])


def test_a_gain_and_its_intervals_by_hand():
    ours = folds([{"a": ONE, "b": ONE}, {"a": TWO, "b": ONE}])
    alone = folds([{"a": TWO, "b": TWO}, {"a": TWO, "b": TWO}])
    found = gain(ours, alone, ["a", "b"], "accuracy", same=False)
    a, b = np.concatenate([ONE - TWO, TWO - TWO]), np.concatenate([ONE - TWO] * 2)
    assert found.mean == pytest.approx((a.mean() + b.mean()) / 2)
    errors = [one.std(ddof=1) / math.sqrt(8) for one in (a, b)]
    assert [error for _, error in found.clients.values()] == pytest.approx(errors)
    # Nadeau and Bengio: two folds, so 1 + 2 / 1
    reach = 1.959964 * math.hypot(*errors) / 2 * math.sqrt(3)
    assert (found.here.high - found.mean, found.deviation) == pytest.approx(
        (reach, reach / 1.959964)
    )
    sites = t_interval([a.mean(), b.mean()])
    assert found.like.high - found.mean == pytest.approx(max(reach, sites.high - found.mean))


def test_rows_that_every_seed_is_tested_on_are_averaged_and_seeds_are_a_source_of_their_own():
    ours = folds([{"a": ONE, "b": ONE}, {"a": TWO, "b": ONE}])
    found = gain(ours, folds([{"a": TWO, "b": TWO}] * 2), ["a", "b"], "accuracy", same=True)
    a, b = (ONE - TWO) / 2, ONE - TWO
    rows = math.hypot(*(one.std(ddof=1) / 2 for one in (a, b))) / 2
    seeds = t_interval([float((ONE - TWO).mean()), float((ONE - TWO).mean()) / 2])
    reach = math.hypot(1.959964 * rows, seeds.high - seeds.mean)
    assert found.here.high - found.mean == pytest.approx(reach)


def test_a_client_with_one_row_has_the_variance_of_the_others():
    ours, alone = (
        folds([{"a": ONE, "b": ONE}, {"a": TWO}]),
        folds([{"a": TWO, "b": TWO}, {"a": ONE}]),
    )
    for runs in (ours, alone):
        runs[0]["b"] = runs[0]["b"][:1]
    found = gain(ours, alone, ["a", "b"], "accuracy", same=False)
    error = found.clients["a"][1]
    assert math.isnan(found.clients["b"][1])
    assert found.here.std == pytest.approx(math.sqrt(2) * error / 2)


def normal(mean, reach):
    one = Interval(mean, 0.0, mean - reach, mean + reach, 5)
    return Gain({}, one, one)


@pytest.mark.parametrize(
    ("clients", "spread", "rows"), [(30, 0.0, 0.4), (30, 0.1, 0.3), (30, 0.5, 0.2), (4, 0.0, 0.4)]
)
def test_shrunk_gains_hold_what_measured_ones_promise(clients, spread, rows):
    """Of 400 federations: the client with the largest measured gain, and
    how many intervals of two standard errors hold.
    """
    rng = np.random.default_rng(1)
    held, off = [], []
    for _ in range(400):
        true = 0.2 + spread * rng.normal(size=clients)
        errors = rows * rng.uniform(0.5, 1.5, clients)
        found = true + errors * rng.normal(size=clients)
        own = {str(k): (x, v) for k, (x, v) in enumerate(zip(found, errors, strict=True))}
        nothing = Interval(0, 0, 0, 0, clients)
        values, deviations = np.array([*Gain(own, nothing, nothing).shrunk().values()]).T
        held.append(np.mean(abs(values - true) <= 2 * deviations))
        best = found.argmax()
        off.append((values[best] - true[best], found[best] - true[best]))
    ours, measured_ = np.mean(off, 0)
    assert np.mean(held) >= 0.93
    assert abs(ours) <= (0.3 if clients > 4 else 0.6) * measured_


def test_of_a_client_whose_rows_tell_nothing_the_gain_is_the_mean():
    clients = {"a": (0.3, 0.01), "b": (-0.1, 0.01), "c": (5.0, math.nan), "d": (1.0, 1e-9)}
    nothing = Interval(0, 0, 0, 0, 4)
    found = Gain(clients, nothing, nothing).shrunk()
    assert list(found) == list(clients)
    assert found["d"] == pytest.approx((1.0, 0.0), abs=1e-6)
    assert all(map(math.isfinite, np.ravel([*found.values()])))
    alike = Gain({"a": (0.1, 1.0), "b": (0.3, 1.0)}, nothing, nothing).shrunk()
    assert [value for value, _ in alike.values()] == pytest.approx([0.2, 0.2], abs=0.01)
    # as sure as their mean is: 1 / sqrt(2)
    assert [error for _, error in alike.values()] == pytest.approx([0.71, 0.71], abs=0.03)


@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.2, 1.0])
def test_expected_regret_is_that_of_a_normal_law(mean):
    draws = mean + 0.5 * np.random.default_rng(0).normal(size=400_000)
    regret = np.maximum(0.1 - draws, 0).mean(), np.maximum(draws - 0.1, 0).mean()
    parts = [below(sign * (mean - 0.1), 0.5) for sign in (1, -1)]
    assert [chance * size for chance, size in parts] == pytest.approx(regret, abs=3e-3)
    chance, size = below(mean, 0.5)
    assert chance == pytest.approx((draws < 0).mean(), abs=3e-3)
    assert size == pytest.approx(-draws[draws < 0].mean(), abs=6e-3)


@pytest.mark.parametrize(
    ("choice", "other", "price", "kind", "better"),
    [
        ((3.0, 1.0), (0.0, 0.5), 0.0, "use", True),
        ((0.9, 0.8), (2.0, 1.0), 0.0, "use", True),  # a small gain that is sure
        ((0.5, 0.4), (0.2, 0.5), 0.0, "alone", False),  # sure, and nobody reaches delta
        ((0.5, 0.4), (0.2, 0.9), 0.0, "use", True),
        ((-2.0, 1.0), (0.2, 0.5), 0.0, "alone", False),
        ((0.5, 1.0), (0.2, 0.5), 0.0, "either", True),
        ((-0.5, 2.0), (0.2, 0.5), 0.0, "either", False),
        ((3.0, 1.0), (0.0, 0.5), 2.5, "either", True),
        ((3.0, 1.0), (0.0, 0.5), 4.0, "alone", False),
    ],
)
def test_what_is_decided(choice, other, price, kind, better):
    """With delta = 1."""
    gains = {"the choice": normal(*choice), "finetune": normal(*other)}
    assert decided(gains, 1.0, price) == (kind, better)
