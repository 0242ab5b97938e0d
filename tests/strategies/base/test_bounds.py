"""Bounds that a round sets: a cap on weights, limits on arrays that are not the model,
and updates compared with the median of the round and the norm of the model.
"""

import json

import numpy as np
import pytest
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam as FlowerFedAdam,
)

from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run
from fedapps.records.writer import Recorder
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.settings.reading import read_settings
from fedapps.settings.settings import Settings
from fedapps.strategies import (
    AFL,
    FedAvg,
    FedBuff,
    PrivacyOptions,
    Private,
    PropFair,
    Robust,
    RobustOptions,
    Scaffold,
    UpdateBound,
)
from fedapps.strategies.base.capabilities import counts_by_samples
from tests.helpers import START, EchoClient, Trains, arrays_of, play, refused


def run(shifts, weights, bound=None, strategy=None, rounds=1, **options):
    client = lambda i: EchoClient(shifts[i], weights[i])
    options = {"on": {"bound": bound}, **options}
    result = play(strategy or FedAvg(), client, len(shifts), START, rounds, **options)
    return float(result.arrays["w"].numpy()[0]), result.seen, result


TEN = UpdateBound(max_weight=10.0)


@pytest.mark.parametrize(
    ("shifts", "weights", "bound", "wanted"),
    [
        ([1.0, 1.0, 1.0, 5.0], [10, 20, 30, 10**15], None, 5.0),
        # the lower median is 20, or 10
        *(
            ([1.0, 1.0, 1.0, 5.0], [10, 20, 30, giant], TEN, (60 + 5 * 200) / 260)
            for giant in (10**6, 10**15, 1e15, 1e8)
        ),
        ([0.0, 1.0], [10, 10**15], TEN, 10 / 11),
        ([0.0, 1.0, 2.0], [1, 9, 90], TEN, (9 + 180) / 100),  # within ten medians
        # a short update with a giant weight: everybody else is muted, unless both are
        # bounded
        ([1.0] * 20 + [-1e6], [10] * 20 + [10**15], UpdateBound(2.0, "clip"), -np.sqrt(2)),
        (
            [1.0] * 20 + [-1e6],
            [10] * 20 + [10**15],
            UpdateBound(2.0, "clip", max_weight=10.0),
            (20 * 10 - 100 * np.sqrt(2)) / 300,
        ),
    ],
)
def test_a_mean_with_giant_weights_by_hand(shifts, weights, bound, wanted):
    assert run(shifts, weights, bound)[0] == pytest.approx(wanted, rel=1e-5)


def test_a_capped_weight_is_recorded_and_said(caplog):
    _, (now,), _ = run([1.0, 1.0, 1.0, 5.0], [10, 20, 30, 10**6], TEN)
    assert now.trained.capped == [3]
    assert now.trained.metrics[3]["num-examples"] == 200
    said = "is capped to 200, 10 times the median of the round (max-weight)"
    assert any("client 3" in line and said in line for line in caplog.messages)


def test_sizes_are_data_in_evaluations():
    """The record has the samples of each client, and the mean is weighted by them."""
    _, rounds, _ = run([1.0, 1.0, 1.0], [10, 10, 10**5], TEN)
    assert (rounds[0].trained.capped, rounds[0].evaluated.capped) == ([2], [])
    assert rounds[0].evaluated.metrics[2]["num-examples"] == 10**5


def test_nobody_moves_a_weighted_mean_by_more_than_three_of_the_others():
    hardened = UpdateBound(max_weight=3, max_relative_update=3)
    # a weight of 30, so the length of the others, not three times that
    got, rounds, _ = run([1.0] * 9 + [-9.0], [10] * 9 + [10**15], hardened)
    assert got == pytest.approx((9 * 10 - 30) / (9 * 10 + 30))
    assert rounds[0].trained.shortened == [9]
    # twice the weight: three times the length becomes one and a half
    got, _, _ = run([1.0, 1.0, 1.0, 3.0], [10, 10, 10, 20], hardened)
    assert got == pytest.approx((3 * 10 + 20 * 1.5) / 50)
    # who weighs less has no longer bound
    got, _, _ = run([1.0, 1.0, 1.0, 9.0], [10, 10, 10, 1], hardened)
    assert got == pytest.approx((3 * 10 + 3.0) / 31)


@pytest.mark.parametrize(
    ("strategy", "own"),
    [
        (Scaffold(), False),
        (Robust(FedAvg(), RobustOptions("median")), False),
        (AFL(FedAvg()), False),
        (FlowerFedAdam(), True),
        (FedBuff(FedAvg()), True),
        (PropFair(FedAvg()), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_where_weights_are_not_the_clients_own_a_heavy_one_has_the_usual_bound(strategy, own):
    """Otherwise the bound is on weight and length together."""
    assert counts_by_samples(strategy) == own


def test_the_run_says_how_often(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'app'")
    recorder = Recorder(tmp_path, Settings(num_rounds=3).flat(), "digits", strategy=FedAvg())
    bound = UpdateBound(max_weight=10.0, max_relative_update=5)
    run([1.0, 1.0, 9.0], [10, 10**9, 10], bound, rounds=3, callbacks=[recorder])
    summary = recorder.finish("completed")
    assert (summary["capped-weights"], summary["shortened-updates"]) == (3, 6)
    rows = list(map(json.loads, (tmp_path / "rounds.jsonl").read_text().splitlines()))
    assert [(row["capped"], row["shortened"]) for row in rows] == [([1], [1, 2])] * 3
    assert read_run(tmp_path).bounded == [
        ("1", {"weight capped": 3, "update shortened": 3}),
        ("2", {"weight capped": 0, "update shortened": 3}),
    ]
    assert "update shortened" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("given", "weight", "relative"),
    [
        ({}, 0, 0),
        ({"num-clients": 100}, 0, 0),
        ({"hardened": True}, 3, 3),
        ({"max-weight": 4.0}, 4, 0),
        ({"max-relative-update": 4.0}, 0, 4),
        ({"dp.noise-multiplier": 1.0}, 0, 0),
        ({"max-update-norm": 2.0}, 10, 0),
        ({"max-update-norm": 2.0, "max-weight": 3.0}, 3, 0),
        ({"hardened": True, "max-weight": 0.0, "max-relative-update": 0.0}, 0, 0),
    ],
)
def test_only_runs_with_strangers_have_bounds_by_default(given, weight, relative):
    bound = read_settings(given).bound
    assert (bound.max_weight, bound.max_relative_update) == (weight, relative)


def test_sites_keep_their_bounds():
    bound = read_settings({}).deployed().bound
    assert (bound.max_weight, bound.max_relative_update, bound.max_array_value) == (3, 3, 1e6)
    assert read_settings({"max-weight": 0.0}).deployed().bound.max_weight == 0


@pytest.mark.parametrize("method", ["term", "afl"])
def test_hardened_is_for_the_methods_own_bounds_too(method):
    def cap(**given):
        settings = read_settings({"method": method, "num-clients": 4, **given})
        return build_strategy(settings, build_task(settings)).cap

    assert not cap()
    assert cap(hardened=True) > 0
    assert cap(**{"hardened": True, f"{method}.cap": 5.0}) == 5


# --- arrays that are not the model ----------------------------------------------------


def one_step(gradient, variate=None):
    """Return SCAFFOLD's client on one step of length ``rate``: y = x - rate g with the
    gradient g, and the variate of that step, or another.
    """

    def train(sent, config):
        w, c = sent
        y = w - np.float32(config["learning-rate"] * gradient)
        direction = (w - y) / np.float32(config["learning-rate"])
        return [y, direction if variate is None else np.full_like(c, variate)]

    return Trains(train)


def scaffold(variate, config, rounds=2, bound=None):
    client, strategy = lambda i: one_step(1.0, variate if i == 2 else None), Scaffold()
    seen = play(strategy, client, 3, START, rounds, config, on={"bound": bound}).seen
    return strategy.c["w"], seen


def test_control_variates_beyond_any_gradient_are_left_out():
    c, rounds = scaffold(1e14, {"learning-rate": 0.1})
    np.testing.assert_allclose(c, 8 / 9, rtol=1e-5)  # twice, two of three clients move it to 1
    assert all(
        "array 'control.w' holds 1e+14 (limit 1e+06)" in r.trained.failures[0].reason
        for r in rounds
    )


def test_control_variates_are_bounded_by_the_move_of_the_model(caplog):
    """|c + c_i+ - c_i| <= |x - y_i| / eta + |c|, here 1 + |c| in every coordinate, with
    1 % for rounding.
    """
    c, rounds = scaffold(1e5, {"learning-rate": 0.1}, rounds=1)
    np.testing.assert_allclose(c, (1 + 1 + 1.01) / 3, rtol=1e-4)
    assert not rounds[0].failures
    assert "its control variate of w is shortened from 1.41e+05 to 1.43" in caplog.text
    assert abs(scaffold(1e5, {"learning-rate": 0.1}, rounds=8)[0]).max() < 2.0


def test_hardened_no_variate_is_longer_than_three_medians():
    """A variate that agrees with the client's model, but is longer than the others'."""

    def variates(last, hardened):
        gradients = [1.0, 1.1, 1.2, 1.3, last]
        strategy = Scaffold()
        if hardened:
            strategy.harden()
        play(strategy, lambda i: one_step(gradients[i]), 5, START, config={"learning-rate": 0.1})
        return strategy.c["w"]

    np.testing.assert_allclose(variates(-40.0, False), (4.6 - 40) / 5, rtol=1e-5)
    # three times the median of 1, 1.1, 1.2, 1.3 and 40
    np.testing.assert_allclose(variates(-40.0, True), (4.6 - 3 * 1.2) / 5, rtol=1e-5)
    for hardened in (False, True):
        np.testing.assert_allclose(variates(3.0, hardened), (4.6 + 3) / 5, rtol=1e-5)


def test_honest_variates_are_as_they_are(caplog):
    for config in ({"learning-rate": 0.1}, {"learning-rate": 0.1, "lr-decay": 0.5}):
        c, _ = scaffold(None, config, rounds=4)
        np.testing.assert_allclose(c, 1.0, rtol=1e-5)
    assert "shortened" not in caplog.text


def test_the_limit_can_be_set():
    high, low = (UpdateBound(max_array_value=most) for most in (2.0, 0.5))
    _, (now,) = scaffold(0.7, {"learning-rate": 0.1}, 1, high)
    assert not now.failures
    refused(
        lambda: scaffold(0.7, {"learning-rate": 0.1}, 1, low),
        r"\(limit 0\.5\): the client has probably diverged",
        RuntimeError,
    )


# --- updates --------------------------------------------------------------------------


LAYERS = {
    "w": np.full((3, 4), 0.5, np.float32),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(7),
}


def step(size, statistic=0.1):
    """Move the weights by a vector of the norm ``size``, the variances by one of
    ``statistic``.
    """

    def change(arrays):
        w, variance, *rest = arrays
        w += np.float32(size / np.sqrt(w.size))
        variance += np.float32(statistic / np.sqrt(2))
        return [w, variance, *rest]

    return change


FIVE = UpdateBound(max_relative_update=5.0)


def run_changed(*changes, bound=FIVE, strategy=None, rounds=1, start=LAYERS):
    client = lambda i: Trains(lambda sent, _: changes[i]([np.array(array) for array in sent]))
    result = play(strategy or FedAvg(), client, len(changes), start, rounds, on={"bound": bound})
    return arrays_of(result), result.seen


def moved(arrays, name="w"):
    return float(np.linalg.norm(arrays[name] - LAYERS[name]))


def test_a_long_update_is_shortened_to_five_medians(caplog):
    arrays, (now,) = run_changed(step(1.0), step(1.5), step(2.0), step(-60.0))
    # the lower median is 1.5
    assert moved(arrays) == pytest.approx((5 * 1.5 - 1.0 - 1.5 - 2.0) / 4, rel=1e-5)
    assert (now.trained.clients, now.trained.shortened) == ([0, 1, 2, 3], [3])
    assert "client 3: its update is shortened from 60 to 7.5, 5 times the median" in caplog.text
    assert arrays["bn.num_batches_tracked"] == 7


def test_within_the_bound_nothing_is_touched():
    """The same bits as without it."""
    within = [step(1.0 + i, 0.1 + 0.3 * i) for i in range(4)]
    arrays, (now,) = run_changed(*within)
    without, _ = run_changed(*within, bound=None)
    assert not now.trained.shortened
    for name in LAYERS:
        assert arrays[name].tobytes() == without[name].tobytes()


def test_running_statistics_have_a_median_of_their_own():
    """Their updates are large in round 1, which says nothing of the weights."""
    arrays, (now,) = run_changed(step(0.01, 50.0), step(0.01, 50.0), step(0.01, 900.0))
    assert now.trained.shortened == [2]
    assert [moved(arrays, name) for name in ("w", "bn.running_var")] == pytest.approx(
        [0.01, (50 + 50 + 250) / 3], rel=1e-4
    )


@pytest.mark.parametrize("bound", [None, FIVE])
def test_a_model_beyond_all_scales_is_left_out(bound):
    arrays, (now,) = run_changed(
        step(1.0), step(1.0), lambda a: [np.full_like(x, 9e14) for x in a], bound=bound
    )
    assert moved(arrays) == pytest.approx(1.0, rel=1e-5)
    (failure,) = now.failures
    assert failure.client == 2
    assert "has the norm 3.118e+15, more than 1000 times that of the model (1.732) and of the " in (
        failure.reason
    )


def test_what_masks_is_no_length_of_the_model():
    start = {"w": np.ones(4, np.float32), "mask": np.full(2, -1e30, np.float32)}
    change = lambda size: lambda a: [a[0] + np.float32(size), a[1]]
    _, (now,) = run_changed(change(1), change(1), change(1e6), bound=None, start=start)
    (failure,) = now.failures
    assert "times that of the model (2)" in failure.reason


def test_a_zero_model_can_take_any_step_that_others_take_too():
    change = lambda size: lambda a: [a[0] + np.float32(size)]
    arrays, (now,) = run_changed(
        change(1e6), change(2e6), change(3e6), start={"w": np.zeros((3, 4), np.float32)}
    )
    assert not now.failures
    assert arrays["w"][0, 0] == pytest.approx(2e6)


def test_a_single_reply_is_compared_with_the_round_before():
    def sends(sizes):
        """In every round a step of the next size; 0: no reply."""
        left = list(sizes)

        def change(arrays):
            if not (size := left.pop(0)):
                raise RuntimeError("gone")
            return step(size)(arrays)

        return change

    arrays, (_, second, _) = run_changed(sends([1, 1e9, 1]), sends([1, 0, 1]), rounds=3)
    assert "of the median client (1)" in second.failures[0].reason
    assert moved(arrays) == pytest.approx(2.0, rel=1e-5)


def test_where_most_clients_send_the_model_as_it_is_there_is_no_bound():
    arrays, (now,) = run_changed(step(0.0, 0.0), step(0.0, 0.0), step(3.0))
    assert (moved(arrays), now.trained.shortened) == (pytest.approx(1.0, rel=1e-5), [])


@pytest.mark.parametrize(
    "private",
    [
        Private(FedAvg(), PrivacyOptions(noise_multiplier=1e-9)),
        DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1e-9, 1.0, 3),
    ],
)
def test_under_differential_privacy_no_reply_depends_on_another(private):
    """Its own clipping is the bound, and the noise is made for that one only."""
    _, (now,) = run_changed(step(0.1), step(0.1), step(90.0), strategy=private)
    assert (now.trained.shortened, now.failures) == ([], [])


def test_control_variates_are_not_part_of_the_update():
    changes, start = (
        map(lambda i: lambda a: [a[0] + np.float32(0.1), a[1] + np.float32(10.0**i)], range(3)),
        {"w": LAYERS["w"]},
    )
    _, (now,) = run_changed(*changes, strategy=Scaffold(), start=start)
    assert not now.trained.shortened


def test_a_negative_variance_is_left_out():
    def negative(arrays):
        arrays[1] -= np.float32(1.5)
        return arrays

    arrays, (now,) = run_changed(step(1.0), step(1.0), negative)
    (failure,) = now.failures
    assert failure.reason == "array 'bn.running_var' holds -0.5: a variance is at least 0"
    assert (arrays["bn.running_var"] > 0).all()


def test_the_noise_of_privacy_leaves_no_negative_variance():
    strategy = Private(
        FedAvg(), PrivacyOptions(noise_multiplier=50.0), rng=np.random.default_rng(0)
    )
    arrays, _ = run_changed(step(0.1), step(0.1), strategy=strategy)
    assert arrays["bn.running_var"].min() == 0
    assert arrays["w"].min() < 0
