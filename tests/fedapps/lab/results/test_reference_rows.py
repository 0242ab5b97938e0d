"""Rows of predictors without training: a run's ``MEASURE-of-NAME`` is the MEASURE of
predictor NAME.
"""

from pathlib import Path

import pytest

from fedapps.lab.results.comparison_table import columns_of, rows_of
from fedapps.records.reader import RunFolder


def run(name, seed=0, **evaluation):
    settings = {"method": name, "seed": seed}
    rounds = [{"round": 1, "evaluate": evaluation}]
    summary = {"state": "completed", "seed": seed, **evaluation}
    return RunFolder(Path(f"{name}{seed}"), settings, {}, rounds, 0, [], {}, summary)


def values(runs):
    return {
        row.label: {key: mean for key, (mean, _) in row.values.items()} for row in rows_of(runs)
    }


def test_one_row_for_all_runs_of_the_same_data():
    numbers = {"test-rmse": 0.9, "test-rmse-of-mean": 1.1, "test-rmse-of-biases": 0.95}
    first, second = run("fedfw", **numbers), run("dfw-trace", **(numbers | {"test-rmse": 0.8}))
    by_row = values([first, second])
    assert list(by_row) == ["fedfw", "dfw-trace", "mean (not trained)", "biases (not trained)"]
    assert by_row["biases (not trained)"] == {"test-rmse": 0.95}
    other_data = run("dfw-trace", **{"test-rmse": 0.9, "test-rmse-of-mean": 1.2})
    assert "mean (not trained)" not in values([first, other_data])


def test_reference_predictors_have_means_and_deviations_over_seeds():
    runs = [
        run("fedfw", seed, **{"test-rmse": 0.9, "test-rmse-of-mean": 1.0 + 0.1 * seed})
        for seed in (0, 1, 2)
    ]
    (_, reference) = rows_of(runs)
    assert reference.values["test-rmse"] == pytest.approx((1.1, 0.1))
    assert (reference.complete, reference.remark) == (True, "")
    # rows, and no columns
    assert all("-of-" not in column.key for column in columns_of(rows_of(runs)))
