"""The seconds of simulated clients."""

from statistics import mean, stdev

import numpy as np
import pytest

from fedapps.algorithms.common.fleet import Fleet, FleetOptions, Measured
from tests.helpers import refused


def fleet(seed=0, **options):
    return Fleet(FleetOptions(**options), seed)


def test_seconds_of_equal_clients_by_hand():
    equal = fleet(speed="equal", sample_seconds=0.5, bandwidth=100.0)
    assert equal.training(3, 1, 10.0, 40, 1000).arrival == 10 + 0.5 * 40 + 1000 / 100


def test_speeds_have_their_distribution_and_stay_over_rounds_and_in_any_order():
    log_normal, half_normal = fleet(speed="log-normal"), fleet(speed="half-normal", spread=2.0)
    logs = [np.log(log_normal.slowness(k)) for k in range(3000)]
    assert (mean(logs), stdev(logs)) == (pytest.approx(0, abs=0.04), pytest.approx(0.7, abs=0.03))
    slow = np.array([half_normal.slowness(k) for k in range(3000)])
    assert slow.min() >= 1
    assert slow.mean() == pytest.approx(1 + 2 * np.sqrt(2 / np.pi), abs=0.06)
    again = fleet(speed="log-normal")
    assert [again.slowness(k) for k in (2, 1, 0)] == [log_normal.slowness(k) for k in (2, 1, 0)]
    assert fleet(1, speed="log-normal").slowness(0) != log_normal.slowness(0)
    took = [log_normal.training("site", r, 5.0, 30, 0).arrival - 5 for r in (1, 2)]
    assert took[0] == pytest.approx(took[1])


def test_jitter_and_dropout_are_drawn_for_each_training():
    jittery = fleet(speed="equal", jitter=0.3, dropout=0.2, sample_seconds=1.0)
    trainings = [jittery.training(k, r, 0.0, 1, 0) for k in range(40) for r in range(50)]
    whole = [np.log(t.arrival) for t in trainings if not t.broken]
    assert stdev(whole) == pytest.approx(0.3, abs=0.03)
    assert 1 - len(whole) / 2000 == pytest.approx(0.2, abs=0.03)
    assert mean([t.arrival for t in trainings if t.broken]) == pytest.approx(
        0.5 * mean(map(np.exp, whole)), abs=0.08
    )


def test_a_client_is_there_in_its_own_part_of_the_day():
    office = fleet(speed="equal", available=0.25, day=100.0)
    hours = np.array([[office.available(k, 1, t) for t in range(200)] for k in range(60)])
    assert (hours.sum(1) == 50).all()
    assert (hours[:, :100] == hours[:, 100:]).all()
    assert len({tuple(row) for row in hours}) > 40
    seconds = Measured([{"client": str(k), "seconds": "2"} for k in range(60)])
    office = Fleet(FleetOptions(speed="file", file="x", available=0.25, day=100.0), 0, seconds)
    assert (hours == [[office.available(k, 1, t) for t in range(200)] for k in range(60)]).all()


DRAWN = [{"client": "a", "seconds": "2"}, {"client": "a", "seconds": "8"}]
TIMES = ("client", "round", "asked", "arrived", "fate", "ended")
OF_A_RUN = [
    dict(zip(TIMES, ("a", "2", "4.5", "7.25", "used", "2"), strict=True)),
    dict(zip(TIMES, ("a", "3", "8", "", "open", "4"), strict=True)),
]


def measured(rows):
    return Fleet(FleetOptions(speed="file", file="x"), 0, Measured(rows))


def test_measured_seconds_are_drawn_and_times_of_a_run_are_repeated():
    drawn = measured(DRAWN)
    assert {drawn.training("a", r, 1.0, 5, 5).arrival for r in range(40)} == {3.0, 9.0}
    run = measured(OF_A_RUN)
    training = run.training("a", 2, 1.0, 5, 5)
    assert (training.asked, training.arrival, training.broken) == (4.5, 7.25, False)
    assert run.training("a", 3, 1.0, 5, 5).arrival == np.inf
    there = [[run.available(client, number, 1.0) for number in range(1, 5)] for client in "ab"]
    assert there == [[False, True, True, True], [False] * 4]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: Measured([]), "no rows"),
        (lambda: Measured([{"site": "a"}]), "no column"),
        (lambda: Measured([{"client": "a", "seconds": "fast"}]), "not complete"),
        (lambda: Measured([{"client": "a", "seconds": "-1"}]), "negative"),
        (lambda: FleetOptions(file="x.csv"), "speed = 'file'"),
        (lambda: FleetOptions(speed="file"), "file"),
        (lambda: measured(DRAWN).training("b", 1, 0.0, 1, 1), "no seconds of client b in round 1"),
        (
            lambda: measured(OF_A_RUN).training("a", 9, 1.0, 5, 5),
            "no seconds of client a in round 9",
        ),
        (lambda: measured(OF_A_RUN).available("a", 5, 1.0), "that run ended with round 4"),
    ],
)
def test_a_bad_file_is_named_and_a_file_needs_its_speed(call, why):
    refused(call, why)
