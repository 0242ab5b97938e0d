"""Rows of predictors without training: a run's ``MEASURE-of-NAME`` is the MEASURE of
predictor NAME.
"""

from pathlib import Path

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
    by_row = values([run("fedfw", **numbers), run("dfw-trace", **(numbers | {"test-rmse": 0.8}))])
    assert list(by_row) == ["fedfw", "dfw-trace", "mean (not trained)", "biases (not trained)"]
    assert by_row["biases (not trained)"] == {"test-rmse": 0.95}


def test_runs_of_other_data_have_no_row_in_common():
    first, second = (
        {"test-rmse": 0.9, "test-rmse-of-mean": 1.1},
        {"test-rmse": 0.9, "test-rmse-of-mean": 1.2},
    )
    assert list(values([run("fedfw", **first), run("dfw-trace", **second)])) == [
        "fedfw",
        "dfw-trace",
    ]


def test_reference_predictors_have_means_and_deviations_over_seeds():
    runs = [
        run("fedfw", seed, **{"test-rmse": 0.9, "test-rmse-of-mean": 1.0 + 0.1 * seed})
        for seed in (0, 1, 2)
    ]
    (_, reference) = rows_of(runs)
    mean, spread = reference.values["test-rmse"]
    assert abs(mean - 1.1) < 1e-12
    assert abs(spread - 0.1) < 1e-12
    assert reference.complete
    assert reference.remark == ""


def test_reference_predictors_are_rows_and_not_columns():
    rows = rows_of([run("fedfw", **{"test-rmse": 0.9, "test-rmse-of-mean": 1.1, "bytes-up": 5})])
    assert all("-of-" not in column.key for column in columns_of(rows))
