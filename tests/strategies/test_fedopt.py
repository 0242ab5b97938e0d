"""Algorithm 2 of Reddi et al. against a ten-line reference, and batch statistics."""

import numpy as np
import pytest

from fedapps.strategies import FedAdagrad, FedAdam, FedOptOptions, FedYogi
from tests.helpers import EchoClient, arrays_of, play, that_fails

# Before 1.30 Flower's own adaptive strategies fail on an array without axes.
START = {"w": np.array([0.5, -1.0]), "b": np.array(2.0)}
OPTIONS = FedOptOptions(server_learning_rate=0.3, beta_1=0.6, beta_2=0.9, tau=0.05)
TARGETS, SIZES = [np.array([3.0, 1.0]), np.array([-1.0, 0.1])], [1, 3]
ROUNDS = 7

SECOND = {
    FedAdam: lambda v, d2: 0.9 * v + 0.1 * d2,
    FedYogi: lambda v, d2: v - 0.1 * d2 * np.sign(v - d2),
    FedAdagrad: lambda v, d2: v + d2,
}


class Pull(EchoClient):
    """Moves a third of the way to its target, so that updates shrink, grow and change
    sign.
    """

    def __init__(self, i):
        super().__init__(0, SIZES[i])
        self.i = i

    def fit(self, parameters, config):
        target = [TARGETS[self.i], TARGETS[self.i][1]]
        return (
            [p + (t - p) / 3 for p, t in zip(parameters, target, strict=True)],
            self.num_examples,
            {"loss": 1.0},
        )


def reference(second):
    """Return w after ROUNDS of Algorithm 2."""
    w, m, v = np.array([0.5, -1.0, 2.0]), np.zeros(3), np.full(3, OPTIONS.tau**2)
    targets = [np.append(t, t[1]) for t in TARGETS]
    for _ in range(ROUNDS):
        delta = np.average([(target - w) / 3 for target in targets], axis=0, weights=SIZES)
        m = 0.6 * m + 0.4 * delta
        v = second(v, delta**2)
        w = w + 0.3 * m / (np.sqrt(v) + 0.05)
    return w


def flat(result):
    arrays = arrays_of(result)
    return np.append(arrays["w"], arrays["b"])


@pytest.mark.parametrize("kind", SECOND)
def test_algorithm_2(kind):
    result = play(kind(OPTIONS), Pull, 2, START, ROUNDS)
    np.testing.assert_allclose(flat(result), reference(SECOND[kind]), rtol=1e-10)


def test_counters_and_running_statistics_are_averaged():
    """Adam's normalised step would make a variance of 0.01 negative."""
    start = {
        "layer.weight": np.ones(2, np.float32),
        "layer.running_var": np.full(2, 0.01, np.float32),
        "layer.num_batches_tracked": np.int64(4),
    }
    client = EchoClient(0)
    client.fit = lambda p, c: ([p[0] - 1, p[1] - np.float32(0.005), p[2] + 2], 1, {})
    strategy = FedAdam(FedOptOptions(server_learning_rate=1.0))
    result = arrays_of(play(strategy, lambda i: client, 2, start))
    np.testing.assert_allclose(result["layer.running_var"], 0.005, rtol=1e-6)
    assert result["layer.num_batches_tracked"] == 6
    assert result["layer.num_batches_tracked"].dtype == np.int64
    assert result["layer.weight"].dtype == np.float32
    moved = 1 - 0.1 / (np.sqrt(0.99 * 1e-6 + 0.01) + 1e-3)
    np.testing.assert_allclose(result["layer.weight"], moved, rtol=1e-5)


def test_an_empty_round_changes_no_moment():
    strategy, seen = FedAdam(OPTIONS), []
    note = lambda now: seen.append((strategy.m, strategy.v))
    play(strategy, that_fails(Pull, [2]), 2, START, 3, callbacks=[note])
    assert seen[0][0] is seen[1][0]
    assert seen[0][1] is seen[1][1]


@pytest.mark.parametrize("kind", SECOND)
def test_one_poisoned_round_does_not_stop_the_later_ones(kind):
    """It counts as an update five times longer than the longest before, also after a
    resume, and the run recovers.
    """

    class Liar(Pull):
        def fit(self, parameters, config):
            arrays, n, metrics = super().fit(parameters, config)
            lies = self.i == 0 and config["server-round"] == 3
            return [array + 100.0 for array in arrays] if lies else arrays, n, metrics

    strategy, lengths = kind(OPTIONS), []

    def note(now):
        lengths.append(strategy.longest)
        strategy.load_state_dict(strategy.state_dict())

    result = play(strategy, Liar, 2, START, 60, callbacks=[note])
    assert lengths[2] == pytest.approx(5 * lengths[1])
    goal = np.average([[3, 1, 1], [-1, 0.1, 0.1]], axis=0, weights=SIZES)
    assert np.abs(flat(result) - goal).max() < 0.3
