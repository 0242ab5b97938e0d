"""Concordance and survival from counts: against loops over pairs and over times, and
against all subjects together.
"""

import numpy as np
import pytest

from fedapps.algorithms.common.survival import (
    GROUPS,
    concordance,
    fault,
    kaplan_meier,
    pair_counts,
    risk_counts,
)


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


def test_curves_of_added_counts_are_those_of_all_subjects_with_times_rounded_up():
    grid = (2.0, 4.0, 6.0)
    times, events, _ = subjects = drawn(1)
    parts = [
        risk_counts(*(part[at] for part in subjects), grid) for at in np.split(np.arange(60), 3)
    ]
    censored, failed = sum(parts).sum(0)  # whatever the group
    at_risk, survival = kaplan_meier(censored, failed)
    rounded, now = 2 * np.ceil(np.maximum(times, 1) / 2), 1.0
    for place, time in enumerate(grid):
        risk = (rounded >= time).sum()
        now *= 1 - ((rounded == time) & (events == 1)).sum() / risk
        assert (at_risk[place], survival[place]) == (risk, pytest.approx(now))


def test_groups_are_thirds_by_risk_and_equal_risks_stay_together():
    times, events = np.full(9, 5.0), np.ones(9)
    counts = risk_counts(times, events, np.arange(9.0)[::-1], (1.0, 9.0))
    assert counts.sum((1, 2)).tolist() == [3, 3, 3]
    assert counts[:, 1, 1].tolist() == [3, 3, 3]  # of events until the second time
    alike = risk_counts(times, events, np.ones(9), (1.0,))
    assert alike.sum((1, 2)).tolist() == [9, 0, 0]
    _, survival = kaplan_meier(*alike[1])
    assert np.isnan(survival).all()
    assert len(GROUPS) == len(alike)


@pytest.mark.parametrize(
    ("counts", "size", "total"),
    [
        ([1, 2], 3, 9),
        ([1, 2, -1], 3, 9),
        ([1, 2, 0.5], 3, 9),
        ([1, 2, float("nan")], 3, 9),
        ([30, 5, 2], 3, 9),
        ([1, 2, 3, 4], 4, 9),
        ("many", 4, 9),
    ],
)
def test_counts_that_no_subjects_could_have_are_named(counts, size, total):
    assert fault(counts, size, total)
    assert not fault([30, 5, 1], 3, 9)
    assert not fault([1, 2, 3, 3], 4, 9)
