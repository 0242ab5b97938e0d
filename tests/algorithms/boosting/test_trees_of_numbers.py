"""Regression trees grown from sums: least squares, however rows are spread over
clients.
"""

import numpy as np
import pytest

from fedapps.algorithms.boosting.forest import GROW, Forest
from fedapps.algorithms.boosting.histogram_trees import BOUNDS, NUMBER, UNIT, Growth, derivatives
from fedapps.algorithms.boosting.trees import fit_tree, walk
from tests.helpers import assert_arrays


def rows(n=200, features=3, seed=0):
    rng = np.random.default_rng(seed)
    # few values: every one has a bin of its own
    x = rng.integers(0, 12, size=(n, features)).astype(np.float32)
    y = 0.3 * x[:, 0] - (x[:, 1] > 5) + 0.1 * rng.normal(size=n)
    return x, (y - y.mean()) / y.std() + 0.4  # as at clients whose targets are higher than others


def grown(parts, depth, steps, growth, bins=64):
    """Return the forest after ``steps`` steps, from the sums of the parts (x, y)."""
    forest = Forest.new(parts[0][0].shape[1], depth)
    for _ in range(steps):
        sums = sum(
            forest.sums(
                x, y, forest.values(x) if forest.stage >= GROW else np.zeros(len(y)), NUMBER
            )
            for x, y in parts
        )
        assert forest.fault(sums, NUMBER) == ""
        forest.step(sums, growth, NUMBER, bins)
    return forest


PLAIN = Growth(min_leaf=1, l2=0.0, rate=1.0, max_step=100.0)


def test_the_start_is_the_mean_and_the_first_tree_is_that_of_least_squares():
    x, y = rows()
    depth = 3
    forest = grown([(x, y)], depth, 2 + depth, PLAIN)
    assert forest.base == pytest.approx(y.mean(), abs=1 / UNIT)
    feature, threshold, value = fit_tree(x, (y - forest.base)[:, None], depth)
    wanted = walk(feature[None], threshold[None], value[None], x)[0, :, 0]
    np.testing.assert_allclose(forest.values(x) - forest.base, wanted, atol=5 / UNIT)


def test_trees_are_to_the_bit_those_of_the_pooled_rows_however_these_are_dealt():
    x, y = rows(300)
    growth = Growth(min_leaf=5, l2=1.0, rate=0.3)
    cut = np.random.default_rng(1).permutation(300)
    together, apart = (
        grown(parts, 2, 12, growth)
        for parts in ([(x, y)], [(x[at], y[at]) for at in np.array_split(cut, 60)])
    )
    assert_arrays(together.to_arrays(), apart.to_arrays())
    assert np.mean((together.values(x) - y) ** 2) < 0.3 * y.var()


def test_a_target_far_away_draws_no_harder_than_the_bound_and_sums_beyond_it_are_refused():
    y = np.array([0.0, 1e9, -1e9])
    g, h = derivatives(NUMBER, np.zeros(3), y)
    assert (g.tolist(), h.tolist()) == ([0, -8 * UNIT, 8 * UNIT], [UNIT] * 3)
    forest = Forest.new(1, 2)
    sums = forest.sums(np.zeros((3, 1), np.float32), np.zeros(3), np.zeros(3), NUMBER)
    sums[1] = 3 * BOUNDS[NUMBER][0] * UNIT + 1
    assert "more than 8 deviations a row" in forest.fault(sums, NUMBER)
