"""Bounds on updates by the median of the round and by the model's own norm."""

import numpy as np
import pytest
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from fedapps.strategies import (
    FedAvg,
    PrivacyOptions,
    Private,
    Scaffold,
    UpdateBound,
)
from tests.helpers import EchoClient, arrays_of, play

START = {
    "w": np.full((3, 4), 0.5, np.float32),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(7),
}


class Sends(EchoClient):
    """Sends the model changed by ``change``, a function of the list of arrays."""

    def __init__(self, change):
        super().__init__(0.0)
        self.change = change

    def fit(self, parameters, config):
        return self.change([np.array(array) for array in parameters]), 1, {"loss": 1.0}


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


def run(*changes, bound=FIVE, strategy=None, rounds=1, start=START):
    client = lambda i: Sends(changes[i])
    on = {"bound": bound}
    result = play(strategy or FedAvg(), client, len(changes), start, rounds, on=on)
    return arrays_of(result), result.seen


def moved(arrays, name="w"):
    return float(np.linalg.norm(arrays[name] - START[name]))


def test_a_long_update_is_shortened_to_five_medians(caplog):
    arrays, (now,) = run(step(1.0), step(1.5), step(2.0), step(-60.0))
    # the lower median is 1.5
    assert moved(arrays) == pytest.approx((5 * 1.5 - 1.0 - 1.5 - 2.0) / 4, rel=1e-5)
    assert (now.trained.clients, now.trained.shortened) == ([0, 1, 2, 3], [3])
    assert "client 3: its update is shortened from 60 to 7.5, 5 times the median" in caplog.text
    assert arrays["bn.num_batches_tracked"] == 7


def test_no_bound_no_change():
    arrays, (now,) = run(step(1.0), step(1.0), step(9.0), bound=None)
    assert (moved(arrays), now.trained.shortened) == (pytest.approx(11 / 3, rel=1e-5), [])


def test_within_the_bound_nothing_is_touched():
    """The same bits as without it."""
    within = [step(1.0 + i, 0.1 + 0.3 * i) for i in range(4)]
    arrays, (now,) = run(*within)
    without, _ = run(*within, bound=None)
    assert not now.trained.shortened
    for name in START:
        assert arrays[name].tobytes() == without[name].tobytes()


def test_running_statistics_have_a_median_of_their_own():
    """Their updates are large in round 1, which says nothing of the weights."""
    arrays, (now,) = run(step(0.01, 50.0), step(0.01, 50.0), step(0.01, 900.0))
    assert now.trained.shortened == [2]
    assert moved(arrays) == pytest.approx(0.01, rel=1e-4)
    assert moved(arrays, "bn.running_var") == pytest.approx((50 + 50 + 250) / 3, rel=1e-4)


@pytest.mark.parametrize("bound", [None, FIVE])
def test_a_model_beyond_all_scales_is_left_out(bound):
    arrays, (now,) = run(
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
    _, (now,) = run(change(1), change(1), change(1e6), bound=None, start=start)
    (failure,) = now.failures
    assert "times that of the model (2)" in failure.reason


def test_a_zero_model_can_take_any_step_that_others_take_too():
    start = {"w": np.zeros((3, 4), np.float32)}
    change = lambda size: lambda a: [a[0] + np.float32(size)]
    arrays, (now,) = run(change(1e6), change(2e6), change(3e6), start=start)
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

    arrays, (_, second, _) = run(sends([1, 1e9, 1]), sends([1, 0, 1]), rounds=3)
    assert "of the median client (1)" in second.failures[0].reason
    assert moved(arrays) == pytest.approx(2.0, rel=1e-5)


def test_where_most_clients_send_the_model_as_it_is_there_is_no_bound():
    arrays, (now,) = run(step(0.0, 0.0), step(0.0, 0.0), step(3.0))
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
    _, (now,) = run(step(0.1), step(0.1), step(90.0), strategy=private)
    assert (now.trained.shortened, now.failures) == ([], [])


def test_control_variates_are_not_part_of_the_update():
    variate = lambda i: lambda a: [a[0] + np.float32(0.1), a[1] + np.float32(10.0**i)]
    changes, start = map(variate, range(3)), {"w": START["w"]}
    _, (now,) = run(*changes, strategy=Scaffold(), start=start)
    assert not now.trained.shortened


def test_a_negative_variance_is_left_out():
    def negative(arrays):
        arrays[1] -= np.float32(1.5)
        return arrays

    arrays, (now,) = run(step(1.0), step(1.0), negative)
    (failure,) = now.failures
    assert failure.reason == "array 'bn.running_var' holds -0.5: a variance is at least 0"
    assert (arrays["bn.running_var"] > 0).all()


def test_the_noise_of_privacy_leaves_no_negative_variance():
    options = PrivacyOptions(noise_multiplier=50.0)
    strategy = Private(FedAvg(), options, rng=np.random.default_rng(0))
    arrays, _ = run(step(0.1), step(0.1), strategy=strategy)
    assert arrays["bn.running_var"].min() == 0
    assert arrays["w"].min() < 0
