"""Bins from counts, and trees from sums: against quantiles, against splits found row by
row, and against what no rows can sum to.
"""

from itertools import product

import numpy as np
import pytest

from fedapps.algorithms.boosting.bins import (
    LARGEST,
    cells_of,
    counted,
    cuts,
    first_edges,
    keys,
    of_keys,
    refine,
    widths,
)
from fedapps.algorithms.boosting.forest import (
    BOUNDS,
    GROW,
    NUMBER,
    UNIT,
    Forest,
    Growth,
    best_splits,
    derivatives,
    leaf_sums,
    split_by_site,
    start_value,
    sums_fault,
)
from fedapps.algorithms.boosting.trees import fit_tree, walk
from tests.helpers import assert_arrays, refused

#: Two bins, of 0 and of 1.
HALF = [np.float32([0.5])]


def table(n=400, seed=0, missing=0.1):
    rng = np.random.default_rng(seed)
    x = np.stack(
        [rng.normal(size=n), rng.integers(0, 2, n), 1000 * rng.random(n), rng.integers(20, 80, n)],
        1,
    ).astype(np.float32)
    y = (x[:, 0] + (x[:, 3] > 50) + rng.logistic(size=n) > 0.5).astype(np.int64)
    x[rng.random(x.shape) < missing] = np.nan
    return x, y


def bins_of(column, cells=512, bins=8):
    own = [first_edges()]
    for _ in range(2):
        last, counts = own, counted(column[:, None], own)[:-1]
        own = [refine(own[0], counts, cells)]
    return cuts(last[0], counts, bins)


def test_keys_are_in_the_order_of_the_numbers_and_name_each():
    numbers = np.float32(
        [
            -LARGEST,
            -1.5,
            -1,
            -1e-45,
            0,
            1e-45,
            0.5,
            np.nextafter(np.float32(0.5), np.float32(1)),
            3e38,
            LARGEST,
        ]
    )
    assert (np.diff(keys(numbers)) > 0).all()
    assert keys(numbers[6:8])[1] == keys(numbers[6:8])[0] + 1
    np.testing.assert_array_equal(of_keys(keys(numbers)), numbers)
    assert keys(np.float32([-0.0]))[0] == 0


@pytest.mark.parametrize("draw", ["normal", "lognormal", "uniform"])
def test_bins_hold_about_as_many_values_each(draw):
    values = getattr(np.random.default_rng(1), draw)(size=20_000).astype(np.float32) * 1000
    edges = bins_of(values, 512, 16)
    assert len(edges) == 15
    shares = np.bincount(np.searchsorted(edges, values, side="left")) / len(values)
    assert np.abs(shares - 1 / 16).max() < 0.25 / 16


def test_few_values_have_a_bin_each_and_the_edge_is_half_way():
    np.testing.assert_allclose(bins_of(np.float32([0, 1, 1, 0, 1])), [0.5], rtol=1e-3)
    ages = np.float32([20, 20, 30, 30, 31, 77])
    edges = bins_of(ages)
    assert (len(edges), len(set(np.searchsorted(edges, ages, side="left")))) == (3, 4)
    assert [len(bins_of(np.float32([same, same]))) for same in (5, np.nan)] == [0, 0]


def test_cells_that_are_asked_for_bound_the_message():
    rng = np.random.default_rng(0)
    for cells in (4, 64):
        values = (rng.normal(size=3000) * 10.0 ** rng.integers(-8, 8, 3000)).astype(np.float32)
        counts = counted(values[:, None], [first_edges()])[:-1]
        assert (
            len(refine(first_edges(), counts, cells))
            <= 2 * max(cells, np.count_nonzero(counts)) + 2
        )


def split_of(x, edges, derived, growth):
    """Return the best split of one leaf with these rows, whose derivatives are g, h."""
    cells, everyone = cells_of(x, edges), np.zeros(len(x), np.int64)
    return best_splits(leaf_sums(cells, edges, everyone, 1, *derived), edges, growth)


def by_rows(x, g, h, growth):
    """Return (gain, feature, left rows) of the best split, tried value by value and
    side by side.
    """

    def score(rows):
        return g[rows].sum() ** 2 / (h[rows].sum() + growth.l2)

    best, everyone = (0.0, -1, None), np.ones(len(x), bool)
    for f in range(x.shape[1]):
        for cut in np.unique(x[~np.isnan(x[:, f]), f]):
            for left in (x[:, f] <= cut, ~(x[:, f] > cut)):
                if min(left.sum(), (~left).sum()) >= growth.min_leaf:
                    gain = (score(left) + score(~left) - score(everyone)) / 2
                    best = max(best, (gain, f, left), key=lambda split: split[0] * (1 + 1e-9))
    return best


@pytest.mark.parametrize(
    ("seed", "missing", "loss"),
    [(0, 0.0, "cross-entropy"), (1, 0.2, "cross-entropy"), (2, 0.3, "square")],
)
def test_the_best_split_is_the_one_found_row_by_row(seed, missing, loss):
    x, y = table(120, seed, missing)
    edges = [np.unique(c[~np.isnan(c)])[:-1] for c in x.T]  # every value has a bin
    growth = Growth(min_leaf=7, l2=0.5)
    g, h = derivatives(loss, np.linspace(-1, 1, len(y)), y)
    splits = split_of(x, edges, (g, h), growth)
    _, feature, left = by_rows(x, g / UNIT, h / UNIT, growth)
    assert splits.feature[0] == feature
    values = x[:, feature]
    np.testing.assert_array_equal(
        np.where(np.isnan(values), splits.left[0] == 1, values <= splits.threshold[0]), left
    )
    for side, rows in enumerate((left, ~left)):
        assert splits.children[0, side] == pytest.approx(
            growth.rate * (-(g[rows].sum() / UNIT) / (h[rows].sum() / UNIT + growth.l2))
        )


def test_missing_values_can_be_told_from_all_others_and_later_ones_follow_most_rows():
    x = np.float32([[1]] * 30 + [[np.nan]] * 30)
    derived = derivatives("cross-entropy", np.zeros(60), np.repeat([0, 1], 30))
    splits = split_of(x, HALF, derived, Growth())
    assert (splits.feature[0], splits.threshold[0], splits.left[0]) == (0, LARGEST, 0)
    assert splits.children[0, 0] < 0 < splits.children[0, 1]
    x = np.float32([[0]] * 40 + [[1]] * 20)  # none missing: most go left
    splits = split_of(x, HALF, derived, Growth())
    assert (splits.threshold[0], splits.left[0]) == (0.5, 1)


def site_split_of(sums, growth):
    """Return the split of one leaf whose rows have one value, and the sites (K,) that
    go left, given the sites' sums (K, 3).
    """
    bins = np.zeros((1, 3, 3), np.int64)
    bins[0, :, 0] = sums.sum(0)
    splits, sides = split_by_site(best_splits(bins, HALF, growth), sums[None], 1, growth)
    return splits, sides[0]


@pytest.mark.parametrize("l2", [0.0, 3.0])
def test_the_best_split_by_site_is_the_best_of_all_subsets(l2):
    """No subset of the sites gains more than the best part of their order by G / H."""
    rng, growth = np.random.default_rng(0), Growth(min_leaf=1, l2=l2)

    def score(part):
        g, h = part.sum(0)[:2] / UNIT
        return g**2 / (h + l2)

    for _ in range(40):
        sums = np.stack(
            [rng.integers(-9, 9, 7), rng.integers(1, 9, 7), rng.integers(1, 9, 7)], 1
        ) * [UNIT, UNIT, 1]
        gains = [
            (score(sums[left]) + score(sums[~left]) - score(sums)) / 2
            for left in (np.array((True, *rest)) for rest in product((True, False), repeat=6))
            if not left.all()
        ]
        splits, sides = site_split_of(sums, growth)
        assert splits.feature[0] == 1
        assert splits.gain[0] == pytest.approx(max(gains))
        left = sums[sides == 1].sum(0) / UNIT
        assert splits.children[0, 0] == pytest.approx(growth.value(left[0], left[1]))


def test_sites_without_rows_go_with_most_rows_and_small_parts_are_not_split_off():
    sums = np.array([[-9, 4, 31], [0, 0, 0], [8, 4, 30], [0, 0, 0]]) * [UNIT, UNIT, 1]
    splits, sides = site_split_of(sums, Growth(min_leaf=30))
    assert splits.left[0] == 1
    assert sides.tolist() == [1, 1, 0, 1]
    assert site_split_of(sums, Growth(min_leaf=31))[0].feature[0] == -1


@pytest.mark.parametrize("l2", [0.0, 1.0])
def test_rows_that_are_alike_are_not_split(l2):
    derived = derivatives("cross-entropy", np.full(60, 0.3), np.ones(60, np.int64))
    assert (
        split_of(np.float32([[0]] * 30 + [[1]] * 30), HALF, derived, Growth(l2=l2)).feature[0] == -1
    )


def test_no_leaf_is_smaller_than_allowed_and_steps_are_bounded():
    x, y = np.float32([[0]] * 19 + [[1]] * 41), np.repeat([0, 1], [19, 41])
    derived = derivatives("cross-entropy", np.zeros(60), y)
    assert split_of(x, HALF, derived, Growth(min_leaf=20)).feature[0] == -1
    splits = split_of(x, HALF, derived, Growth(min_leaf=19, l2=0.0, max_step=0.7, rate=0.5))
    assert splits.feature[0] == 0
    np.testing.assert_allclose(splits.children[0], [-0.35, 0.35])


def test_derivatives_are_those_of_the_losses_and_the_start_is_the_best_constant():
    y, values = np.array([0, 1, 1]), np.array([-0.3, 0.2, 0.9])
    likely = 1 / (1 + np.exp(-values))
    for loss, g, h in (
        ("cross-entropy", likely - y, likely * (1 - likely)),
        ("square", values - (2 * y - 1), np.ones(3)),
    ):
        result = derivatives(loss, values, y)
        np.testing.assert_allclose(result[0] / UNIT, g, atol=1 / UNIT)
        np.testing.assert_allclose(result[1] / UNIT, h, atol=1 / UNIT)
        # the best constant with half a row of each label added
        for rows, ones in ((1000, 300), (10, 10), (3, 0)):
            slopes = (
                derivatives(loss, np.full(2, start_value(loss, rows, ones)), np.array([1, 0]))[0]
                / UNIT
            )
            assert slopes @ [ones + 0.5, rows - ones + 0.5] == pytest.approx(0, abs=rows / UNIT)


def test_classes_start_at_their_shares_with_half_a_row_of_each_added():
    x, y = np.zeros((8, 1), np.float32), np.repeat([0, 2], [3, 5])
    forest = Forest.new(1, 1, outputs=3)
    for _ in range(2):
        forest.step(
            forest.sums(x, y, np.zeros((8, 3)), "cross-entropy"), Growth(), "cross-entropy", 4
        )
    np.testing.assert_allclose(np.exp(forest.base), np.array([3.5, 0.5, 5.5]) / 9.5)


def forest_at(stage, x, y):
    forest = Forest.new(x.shape[1], 2)
    while forest.stage < stage:
        forest.step(
            forest.sums(x, y, np.full(len(y), forest.base), "cross-entropy"),
            Growth(),
            "cross-entropy",
            8,
        )
    return forest


@pytest.mark.parametrize("stage", [0, 1, GROW, GROW + 1])
def test_what_no_rows_can_sum_to_is_told(stage):
    x, y = table()
    forest = forest_at(stage, x, y)
    good = forest.sums(x, y, np.full(len(y), forest.base), "cross-entropy")
    assert (len(good), forest.fault(good, "cross-entropy")) == (forest.length(), "")
    assert forest.fault(np.zeros_like(good), "cross-entropy") == ""
    for place in np.random.default_rng(0).choice(len(good), 20, replace=False):
        for change in (-(10**9), 10**9, 1):  # 1: the other features no longer agree
            bad = good.copy()
            bad[place] += change
            if stage < GROW and place == 1 and change == 1:
                continue  # one more row of label 1 is possible
            assert forest.fault(bad, "cross-entropy"), (place, change)


def test_bounds_of_gradients_and_curvatures_are_by_row():
    one = np.zeros((1, 3, 3), np.int64)
    one[0, :, 0] = UNIT, UNIT // 4, 1
    assert sums_fault(one, HALF, "cross-entropy") == ""
    for channel in (0, 1):
        worse = one.copy()
        worse[0, channel, 0] += 1
        assert "a row" in sums_fault(worse, HALF, "cross-entropy")
    one[0, 0, 0] *= -2
    one[0, 1, 0] *= 4
    assert sums_fault(one, HALF, "square") == ""


def test_trees_go_as_they_were_grown_and_arrays_give_them_back():
    x, y = table(600, missing=0.2)
    forest = Forest.new(4, 3)
    for _ in range(2 + 3 * 4 + 1):
        values = forest.values(x)
        forest.step(forest.sums(x, y, values, "cross-entropy"), Growth(), "cross-entropy", 16)
    assert forest.finished == 4
    again = Forest.from_arrays(forest.to_arrays())
    assert (again.stage, again.depth, again.finished) == (forest.stage, 3, 4)
    np.testing.assert_array_equal(again.values(x), forest.values(x))
    rest = np.full(len(x), forest.base)
    forest.add_to(rest, x, 0)
    np.testing.assert_array_equal(rest, forest.values(x))
    for tree in range(4):  # every leaf has as many rows as it must, and the step that its rows want
        before = np.full(len(x), forest.base)
        for earlier in range(tree):
            before += forest.value[earlier, forest._descend(earlier, x)]
        g, h = (part / UNIT for part in derivatives("cross-entropy", before, y))
        values = forest.value[tree, forest._descend(tree, x)]
        for value in np.unique(values):
            rows = values == value
            assert rows.sum() >= 20
            assert value == pytest.approx(
                0.3 * np.clip(-g[rows].sum() / (h[rows].sum() + 1), -4, 4), rel=1e-6
            )
    assert widths(forest.edges).max() <= 16 + 1
    refused(lambda: Forest.from_arrays({"weight": x}), "no array 'stage'")


# --- trees of numbers -----------------------------------------------------------------

# Regression trees grown from sums: least squares, however rows are spread over
# clients.


def rows(n=200, features=3, seed=0):
    rng = np.random.default_rng(seed)
    # few values: every one has a bin of its own
    x = rng.integers(0, 12, size=(n, features)).astype(np.float32)
    y = 0.3 * x[:, 0] - (x[:, 1] > 5) + 0.1 * rng.normal(size=n)
    return x, (y - y.mean()) / y.std() + 0.4  # as at clients whose targets are higher than others


def grown(parts, depth, steps, growth, bins=64, loss=NUMBER, outputs=1):
    """Return the forest after ``steps`` steps, from the sums of the parts (x, y)."""
    forest = Forest.new(parts[0][0].shape[1], depth, outputs)
    for _ in range(steps):
        sums = sum(forest.sums(x, y, forest.values(x), loss) for x, y in parts)
        assert forest.fault(sums, loss) == ""
        forest.step(sums, growth, loss, bins)
    return forest


def test_the_start_is_the_mean_and_the_first_tree_is_that_of_least_squares():
    x, y = rows()
    depth = 3
    forest = grown([(x, y)], depth, 2 + depth, Growth(min_leaf=1, l2=0.0, rate=1.0, max_step=100.0))
    assert forest.base == pytest.approx(y.mean(), abs=1 / UNIT)
    feature, threshold, value = fit_tree(x, (y - forest.base)[:, None], depth)
    wanted = walk(feature[None], threshold[None], value[None], x)[0, :, 0]
    np.testing.assert_allclose(forest.values(x) - forest.base, wanted, atol=5 / UNIT)


@pytest.mark.parametrize(("loss", "outputs", "steps"), [(NUMBER, 1, 12), ("cross-entropy", 3, 62)])
def test_trees_are_to_the_bit_those_of_the_pooled_rows_however_these_are_dealt(
    loss, outputs, steps
):
    """Of numbers, and of three classes, which have trees in turn."""
    x, y = rows(300)
    y = np.digitize(y, [0.0, 0.8]) if outputs == 3 else y
    cut = np.random.default_rng(1).permutation(300)
    together, apart = (
        grown(parts, 2, steps, Growth(min_leaf=5, l2=1.0, rate=0.3), 64, loss, outputs)
        for parts in ([(x, y)], [(x[at], y[at]) for at in np.array_split(cut, 60)])
    )
    assert_arrays(together.to_arrays(), apart.to_arrays())
    values = Forest.from_arrays(together.to_arrays()).values(x)
    np.testing.assert_array_equal(values, together.values(x))
    wrong = np.mean((values - y) ** 2) / y.var() if outputs == 1 else np.mean(values.argmax(1) != y)
    assert wrong < 0.3


def test_a_target_far_away_draws_no_harder_than_the_bound_and_sums_beyond_it_are_refused():
    g, h = derivatives(NUMBER, np.zeros(3), np.array([0.0, 1e9, -1e9]))
    assert (g.tolist(), h.tolist()) == ([0, -8 * UNIT, 8 * UNIT], [UNIT] * 3)
    forest = Forest.new(1, 2)
    sums = forest.sums(np.zeros((3, 1), np.float32), np.zeros(3), np.zeros(3), NUMBER)
    sums[1] = 3 * BOUNDS[NUMBER][0] * UNIT + 1
    assert "more than 8 deviations a row" in forest.fault(sums, NUMBER)
