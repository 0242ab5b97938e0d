"""Concordance from counts, against a loop over pairs."""

import numpy as np
import pytest

from fedapps.algorithms.common.survival import concordance, fault, pair_counts


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
