"""What clients have in common: mixtures by hand and by brute force, and copies of
samples.
"""

import itertools

import numpy as np
import pandas as pd

from fedapps.commands.parser import main
from fedapps.lab.client_samples import MOST, common_share, copies
from tests.helpers import lacking


def test_mixtures_that_are_equal_apart_and_between():
    assert common_share(np.array([[2, 4], [1, 2]])) == (1, 1, 1), "sizes do not matter"
    assert common_share(np.array([[3, 0], [0, 5]])) == (0, 0, 0)
    np.testing.assert_allclose(
        common_share(np.array([[1, 1, 0], [0, 1, 1], [0, 0, 4]])), (1 / 3, 0, 0.5)
    )


def test_all_pairs_are_compared():
    counts = np.random.default_rng(0).integers(1, 20, (6, 4))
    pairs = [
        sum(min(a, b) for a, b in zip(p, q, strict=True))
        for p, q in itertools.combinations(counts / counts.sum(1, keepdims=True), 2)
    ]
    np.testing.assert_allclose(common_share(counts), (np.mean(pairs), min(pairs), max(pairs)))
    assert common_share(np.ones((10 * MOST, 2), int)) == (1, 1, 1)


def test_copies():
    x = np.array([[0.0, 1], [2, 3], [0, 1], [4, 5], [0, 1], [6, 7]])
    assert copies(x, [np.array([0]), np.array([1])], [np.array([3]), np.array([5])]) == (0, 0)
    assert copies(x, [np.array([0]), np.array([1])], [np.array([2]), np.array([4, 5])]) == (2, 0)
    assert copies(x, [np.array([0, 2]), np.array([1])], [np.array([3])]) == (0, 0), (
        "twice at one client is its own affair"
    )
    assert copies(x, [np.array([0]), np.array([2, 1])], [np.array([3])]) == (0, 2)
    assert copies(x, [np.array([0]), np.array([1])], [np.array([2])] * 2) == (1, 0), (
        "one sample that all are scored on is one"
    )


def test_the_command_tells_both(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDAPPS_CACHE", str(tmp_path / "cache"))
    frame = pd.DataFrame(
        {
            "x": np.arange(40.0),
            "label": [0, 1] * 20,
            "site": ["a", "b"] * 20,
            "part": (["train"] * 4 + ["test"]) * 8,
        }
    )
    frame.loc[frame.part == "test", "x"] = 0.0  # as the first row, which site a trains on
    frame.loc[1, "x"] = 2.0  # of site b, as the third row, of site a
    (tmp_path / "set").mkdir()
    frame.to_csv(tmp_path / "set" / "train.csv", index=False)
    given = [
        "data.partition=natural",
        "data.natural-id=site",
        "data.part=part",
        f"data.source={tmp_path / 'set'}",
    ]
    assert main(["data", "task=classification", *given]) == 0
    out = capsys.readouterr().out
    assert not lacking(
        out,
        "classes: two clients share 0 % of their mixtures on average (from 0 % to 0 %)",
        "note: test samples that are copies of training samples: 8",
        "note: training samples that are copies of another client's: 2",
    )
