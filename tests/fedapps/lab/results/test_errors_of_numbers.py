"""Results of runs that predict numbers: lower errors are better, and impossible sums of
clients are ignored.
"""

import numpy as np
import pytest

from fedapps.algorithms.common.target_errors import error_sums, errors_of
from fedapps.lab.charts.theme import THEME
from fedapps.lab.results.comparison_table import rows_of
from fedapps.lab.results.fair_plots import client_bars, fair_measure, worst_first
from fedapps.lab.results.gains import gains_over, gains_section, reference_of
from fedapps.records.measures import pooled_errors, summarise
from fedapps.records.reader import read_run


def reported(y, f):
    sums = error_sums(f[:, None], y[:, None])
    return {
        **errors_of(len(y), sums),
        "loss": 1.0,
        "test-samples": len(y),
        "error-sums": sums.ravel().tolist(),
    }


def replies(seed=0, sizes=(4, 30, 9)):
    rng = np.random.default_rng(seed)
    parts = [
        (y, y + rng.normal(size=size) * (k + 1))
        for k, size in enumerate(sizes)
        for y in [7 * k + rng.normal(size=size)]
    ]
    return parts, {k: reported(*part) for k, part in enumerate(parts)}


def test_pooled_errors_are_those_of_all_samples_and_the_worst_client_is_the_one_with_the_largest_error():
    parts, metrics = replies()
    y, f = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    summary = summarise(metrics) | pooled_errors(metrics)
    own = [np.sqrt(np.mean((f - y) ** 2)) for y, f in parts]
    wanted = {
        "rmse-pooled": np.sqrt(np.mean((f - y) ** 2)),
        "r2-pooled": 1 - ((f - y) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
        "rmse-worst": max(own),
        "rmse-mean": np.mean(own),
    }
    assert {key: summary.get(key) for key in wanted} == pytest.approx(wanted)
    assert not {"gini", "error-sums-mean"} & summary.keys()


@pytest.mark.parametrize(
    "lie",
    [
        {"error-sums": [-1.0, 1.0, 0.0, 1.0]},
        {"error-sums": [1.0, 1.0, 0.0]},
        {"error-sums": [1.0, 1.0, float("nan"), 1.0]},
        {"error-sums": "much"},
        {"test-samples": -5},
        {"test-samples": 0},
    ],
)
def test_impossible_sums_are_skipped(lie):
    _, metrics = replies()
    honest = pooled_errors(metrics)
    assert pooled_errors(metrics | {"liar": metrics[1] | lie}) == honest
    assert pooled_errors({"liar": metrics[1] | lie}) == {}


def with_errors(path, *values):
    (path / "clients.csv").write_text(
        "client,rmse\n" + "".join(f"{k},{value}\n" for k, value in enumerate(values))
    )
    return read_run(path)


def test_lower_errors_are_better_in_all_comparisons(write_run):
    last = {"rmse-mean": 3.0, "rmse-worst": 4.0, "r2-pooled": 0.5}
    runs = [
        with_errors(write_run("a", "fedavg", last=last), 2.0, 4.0),
        with_errors(write_run("b", "local", last=last | {"rmse-mean": 5.0}), 4.0, 6.0),
    ]
    rows = rows_of(runs)
    assert fair_measure(runs) == "rmse"
    assert worst_first([1.0, 3.0, 2.0], "rmse").tolist() == [3.0, 2.0, 1.0]
    assert worst_first([1.0, 3.0, 2.0], "accuracy").tolist() == [1.0, 2.0, 3.0]
    measure, gains = gains_over(rows, reference_of(rows, None), named=False)
    assert (measure, gains[0].numbers()["gain-mean"][0]) == ("rmse", 2.0)
    section = gains_section(measure, reference_of(rows, None), gains)
    assert section.rows[0][1] == "+2.000"
    assert "points" not in section.note
    assert "worst 4.000" in client_bars({"a": runs[:1], "b": runs[1:]}, THEME).panels[0].note
