"""No count or sum of histogram boosting is over too few rows of a client."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from flwr.app import RecordDict

from fedapps.algorithms.boosting.bins import widths
from fedapps.algorithms.boosting.forest import GROW, Forest, Growth, merged
from fedapps.clients import HistogramBoostingClient, MessageStore
from fedapps.clients.base.data import ArrayData, ArraySplit
from fedapps.runs.assembly import build_client, build_task
from fedapps.settings.reading import read_settings
from tests.helpers import refused

WAYS = ("as it is", "one value", "two values", "missing", "ties")


def column(way, rng, n):
    x = rng.normal(size=n).astype(np.float32)
    missing = rng.random(n) < rng.choice([0.1, 0.5, 1.0])
    return {
        "as it is": x,
        "one value": np.full_like(x, 3),
        "two values": (np.arange(n) < 2).astype(np.float32),
        "missing": np.where(missing, np.float32(np.nan), x),
        "ties": np.round(x),
    }[way]


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_of_neighbours_and_large_enough_on_both_sides(way):
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, sides = column(way, rng, 30), np.sort(rng.integers(0, 2, 30))
        out = merged(x, sides, 4)
        np.testing.assert_array_equal(
            out[np.argsort(x)], np.sort(out)
        )  # neighbours, missing values last
        assert set(out[~np.isnan(out)]) <= set(x)
        for side in (0, 1):
            _, rows = np.unique(out[sides == side], return_counts=True)
            assert min(rows, default=4) >= 4


def test_groups_by_hand():
    none = np.zeros(8, int)
    x = np.array([5.0, 1, 2, 3, 9, 7, 8, np.nan])
    np.testing.assert_array_equal(merged(x, none, 3), [8, 2, 2, 2, 8, 8, 8, 8])
    np.testing.assert_array_equal(merged(x, none, 1), x)
    np.testing.assert_array_equal(merged(x[:0], none[:0], 3), [])
    # the last row is alone on its side, but for the first ones
    np.testing.assert_array_equal(merged(np.arange(5), np.array([1, 1, 0, 0, 1]), 2), [2] * 5)
    refused(lambda: merged(x[:2], none[:2], 3), "a group needs 3")


def sites(rng, count=6, rows=30):
    out = []
    for _ in range(count):
        x = np.stack([column(way, rng, rows) for way in (*WAYS, "as it is")], 1)
        part = ArraySplit(
            x, (np.nan_to_num(x[:, 0] + x[:, 5]) + rng.normal(size=rows) > 0).astype(np.int64)
        )
        out.append(ArrayData(part, part, part))
    return out


@pytest.mark.parametrize("least", [2, 5])
def test_no_number_that_leaves_a_site_is_over_fewer_rows(least):
    clients = [
        HistogramBoostingClient(data, min_cell=least) for data in sites(np.random.default_rng(1))
    ]
    forest, merges = Forest.new(6, 3), 0
    for now in range(2 + 3 * 5):
        config = {"loss": "cross-entropy", "sums": forest.length(), "server-round": now + 1}
        arrays = list(forest.to_arrays().values())
        sums = [client.fit(arrays, config)[0][0].astype(np.int64) for client in clients]
        assert not any(forest.fault(own, "cross-entropy") for own in sums)
        if forest.stage < GROW:
            rows = [own[2:] for own in sums]
        else:
            rows = [own.reshape(-1, 3, int(widths(forest.edges).sum()))[:, 2] for own in sums]
        assert all(np.all((own == 0) | (own >= least)) for own in rows)
        if forest.stage > GROW:  # rows that the level above reports together stay together
            for client in clients:
                above, wide = replace(forest, stage=forest.stage - 1).binned(client.inputs(), least)
                _, fine = forest.binned(client.inputs(), least)
                for leaf, f in product(np.unique(above), range(6)):
                    pairs = np.stack([wide[above == leaf, f], fine[above == leaf, f]])
                    assert len(np.unique(pairs, axis=1).T) == len(np.unique(pairs[0]))
                    merges += len(np.unique(pairs[1])) < len(np.unique(pairs[0]))
        forest.step(np.sum(sums, axis=0), Growth(5, 1.0, 0.3), "cross-entropy", 16)
    assert merges > 50


def test_a_client_with_fewer_rows_does_not_train():
    (data,) = sites(np.random.default_rng(1), 1)
    arrays = list(Forest.new(6, 3).to_arrays().values())
    refused(
        lambda: HistogramBoostingClient(data, min_cell=31).fit(arrays, {"loss": "cross-entropy"}),
        "30 training rows, but min-cell = 31",
    )


@pytest.mark.parametrize("task", ["tabular", "regression"])
def test_the_setting_reaches_the_client(task):
    settings = read_settings(
        {
            "task": task,
            "method": "histogram-boosting",
            "num-clients": 3,
            "histogram-boosting.min-cell": 7,
        }
    )
    for values in (
        build_client(settings, build_task(settings), 0, 3, MessageStore(RecordDict())).inputs().T
    ):
        assert np.unique(values, return_counts=True)[1].min() >= 7
