"""Measures of a run, on a folder whose rounds are known."""

import json
import math

import pytest

from fedapps.lab.results.run_measures import curve_of, read_measure, value_of
from fedapps.lab.sweeps.tables import best_of, number
from fedapps.records.reader import read_run
from tests.helpers import refused


@pytest.fixture
def run(tmp_path):
    """Four rounds with evaluations after rounds 1, 2 and 4. Two clients together send
    two models and receive three in each round.
    """
    rows = []
    for turn, accuracy in ((1, 0.5), (2, 0.9), (3, None), (4, 0.8)):
        row = {
            "round": turn,
            "train": {"loss": 1 / turn, "objective": turn},
            "models-up": 2,
            "models-down": 3,
            "clock-seconds": 2.5 * turn,
        }
        rows.append(row | ({} if accuracy is None else {"evaluate": {"accuracy-mean": accuracy}}))
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "settings.toml").write_text(
        'method = "fedavg"\nseed = 0\nnum-rounds = 4\nnum-clients = 2\n'
    )
    (tmp_path / "summary.json").write_text(
        '{"status": "completed", "rounds-completed": 4, "accuracy-mean": 0.8, "bytes-up": 7}'
    )
    (tmp_path / "clients.csv").write_text("client,accuracy,loss\n0,0.7,2.5\n1,0.9,0.5\n")
    return read_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("accuracy-mean", 0.8),
        ("bytes-up", 7),
        ("accuracy-mean@1", 0.5),
        ("accuracy-mean@3", 0.9),  # round 3 was not evaluated
        ("accuracy-mean@99", 0.8),
        ("accuracy-mean@0", None),
        ("accuracy-mean@5-models", 0.9),  # 2.5 models per client and round
        ("accuracy-mean@4-models", 0.5),
        ("best(accuracy-mean)", 0.9),
        ("rounds-to(accuracy-mean,0.6)", 2),
        ("rounds-to(accuracy-mean, 0.95)", math.inf),
        ("seconds-to(accuracy-mean,0.6)", 5),
        ("seconds-to(accuracy-mean,0.85)", 5),
        ("seconds-to(accuracy-mean,0.95)", math.inf),
        ("seconds-to(train.loss,0.3)", 10),  # a loss falls to it
        ("rounds-to(train.loss,0.6)", 2),
        ("rounds-to(train.loss,0.0001)", math.inf),
        ("best(train.loss)", 0.25),
        ("seconds-to(rmse-mean,0.3)", None),
        ("train.loss", 0.25),
        ("train.loss@2", 0.5),
        ("sum(train.objective)", 10),
        ("max(clients.loss)", 2.5),
        ("min(clients.accuracy)", 0.7),
        ("mean(clients.accuracy)", 0.8),
        ("accuracy-median", None),
        ("max(clients.none)", None),
    ],
)
def test_values(run, text, value):
    assert value_of(run, read_measure(text)) == (None if value is None else pytest.approx(value))


def test_sums_are_sums_so_far_and_a_run_without_a_clock_has_no_seconds_to_a_target(run):
    assert curve_of(run, read_measure("sum(train.objective)")) == ([1, 2, 3, 4], [1, 3, 6, 10])
    for row in run.rounds:
        del row["clock-seconds"]
    assert value_of(run, read_measure("seconds-to(accuracy-mean,0.6)")) is None


@pytest.mark.parametrize(
    "text",
    ["", "best(", "best(a", "a)", "median(a)", "rounds-to(a)", "seconds-to(a)", "seconds-to(a,1)@3", "best(a,3)", "a@x", "sum(a)", "max(a)", "clients.loss", "a@3-model",
     "best(a)@3", "rounds-to(a,b)"],
)  # fmt: skip
def test_invalid_measures_are_errors(text):
    refused(lambda: read_measure(text), r"write NAME, NAME@ROUND")


@pytest.mark.parametrize(
    ("text", "unit", "name"),
    [
        ("accuracy-mean@5", "accuracy-mean", "accuracy, mean after round 5"),
        ("accuracy-mean@200-models", "accuracy-mean", "accuracy, mean with 200 models"),
        ("rounds-to(accuracy-mean,0.85)", "rounds", "rounds to accuracy, mean 0.85"),
        ("seconds-to(accuracy-mean,0.85)", "seconds", "seconds to accuracy, mean 0.85"),
        ("max(clients.train-loss)", "train-loss", "train loss, largest of a client"),
        ("sum(train.objective)", "objective", "sum of training objective"),
    ],
)
def test_headings_and_units(text, unit, name):
    assert (read_measure(text).unit, read_measure(text).name) == (unit, name)


def test_seconds_to_a_target_are_better_if_fewer():
    to = "seconds-to(accuracy-mean,0.85)"
    assert (number(to, 12.34), number(to, math.inf), best_of(to)) == ("12.3", "never", min)
