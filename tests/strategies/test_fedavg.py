"""FedAvg, the server optimisers, and warm starts."""

import numpy as np
import pytest
from flwr.serverapp import strategy as flower

from fedapps.clients import WarmStartClient
from fedapps.strategies import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedDyn,
    FedDynOptions,
    FedOptOptions,
    FedProx,
    FedYogi,
    Local,
    PrivacyOptions,
    Private,
    QFedAvg,
    Robust,
    RobustOptions,
    Scaffold,
    UpdateBound,
    WarmStart,
)
from tests.helpers import (
    EchoClient,
    LossyClient,
    Trains,
    arrays_of,
    assert_arrays,
    play,
    refused,
    simulate,
    that_fails,
)

START = {"w": np.zeros(2, np.float32), "n": np.int64(0)}


def test_average_by_hand():
    shifts, sizes = [1.0, 2.0, 6.0], [1, 2, 1]
    result = simulate(
        FedAvg(), lambda i, _: EchoClient(shifts[i], sizes[i]), 3, START, num_rounds=2
    )
    np.testing.assert_allclose(arrays_of(result)["w"], 2 * ((1 + 4 + 6) / 4))
    assert arrays_of(result)["n"].dtype == np.int64  # a counter stays a counter
    assert list(arrays_of(result)) == ["w", "n"]  # names survive the trip through NumPyClient


def test_metrics_are_weighted_by_samples():
    clients = [
        EchoClient(0, 1, {"m": 1.0, "curve": [0.0, 1.0]}),
        EchoClient(0, 3, {"m": 5.0, "curve": [4.0, 5.0]}),
    ]
    result = simulate(FedAvg(), lambda i, _: clients[i], 2, START, num_rounds=1)
    assert (
        result.train_metrics_clientapp[1]["m"],
        result.evaluate_metrics_clientapp[1]["curve"],
    ) == (4.0, [3.0, 4.0])


MASK = np.float32([0, -np.inf, np.finfo(np.float32).min])
MASKED = {"w": np.zeros(2, np.float32), "mask": MASK, "v": np.ones(1, np.float32)}
MIX = {
    "fedavg": FedAvg,
    "fedadam": FedAdam,
    "q-fedavg": lambda: QFedAvg(FedAvg()),
    "scaffold": Scaffold,
    "clipped": lambda: FedAvg(),
    "median": lambda: Robust(FedAvg(), RobustOptions("median")),
    "krum": lambda: Robust(FedAvg(), RobustOptions("multi-krum", 0)),
    "private": lambda: Private(FedAvg(), PrivacyOptions(1e-9, 1e9)),
}


class Lossy(LossyClient):
    """Moves ``w`` and ``v`` alone; with SCAFFOLD, c follows, and the mask has none."""

    def fit(self, parameters, config):
        w, mask, v, *c = parameters
        assert len(c) in (0, 2)
        own = [w + np.float32(self.shift), mask, v * 2]
        return [*own, *c], 10, {"loss": 1.0, "loss-before": 1.0}


@pytest.mark.parametrize("name", MIX)
def test_a_mask_travels_as_it_is_and_spoils_nothing_beside_it(name):
    bound = UpdateBound(100.0, "clip") if name == "clipped" else UpdateBound(max_relative_update=3)
    client = lambda i: Lossy([1.0, 2.0, 3.0, 2.0][i], 1.0, 10)
    result = play(MIX[name](), client, 4, MASKED, 2, {"learning-rate": 1.0}, on={"bound": bound})
    assert not any(now.failures for now in result.seen)
    assert np.array_equal(arrays_of(result)["mask"], MASK)
    assert np.isfinite(arrays_of(result)["w"]).all()
    assert (arrays_of(result)["w"] != 0).all()


def test_a_new_infinity_is_still_a_fault():
    result = play(FedAvg(), lambda i: Lossy(np.inf if i else 1.0, 1.0, 10), 2, MASKED)
    np.testing.assert_array_equal(arrays_of(result)["w"], 1.0)
    (failure,) = result.seen[0].failures
    assert failure.reason == "array 'w' holds values that are not finite"


def test_complex_arrays_are_averaged_to_flowers_numbers():
    start = {"w": np.complex64([1 + 2j, 3])}
    client = lambda i, _: EchoClient([1.0, 3.0][i], [10, 30][i])
    with pytest.warns(np.exceptions.ComplexWarning):  # the test client's loss
        ours, theirs = (simulate(kind(), client, 2, start, 2) for kind in (FedAvg, flower.FedAvg))
    assert arrays_of(ours)["w"].dtype == np.complex64
    np.testing.assert_allclose(arrays_of(ours)["w"], arrays_of(theirs)["w"], rtol=1e-6)


@pytest.mark.parametrize("kind", [FedAvg, flower.FedAvg])
def test_an_undefined_score_costs_the_score_and_not_the_model(kind, caplog):
    class Undefined(EchoClient):
        def evaluate(self, parameters, config):
            return 1.0, 1, {"accuracy": 0.5, **self.metrics}

    auc = [{"auc": 0.5}, {"auc": 0.7}, {"auc": float("nan")}]
    result = play(kind(), lambda i: Undefined([1, 2, 6][i], 1, auc[i]), 3, START)
    np.testing.assert_allclose(arrays_of(result)["w"], 3.0)
    # Flower's strategy needs equal names: a model is worth more than the score of all
    # that was trained with it, an evaluation is not
    flowers = kind is flower.FedAvg
    assert result.train_metrics_clientapp[1].get("auc") == (None if flowers else pytest.approx(0.6))
    assert result.evaluate_metrics_clientapp[1]["auc"] == pytest.approx(0.6)
    assert caplog.text.count("client 2: metric 'auc' is not a number") == (1 if flowers else 2)
    assert caplog.text.count("client 2 left out: metric 'auc' is not finite") == flowers


def test_an_evaluation_whose_loss_is_not_a_number_is_one_of_a_model_that_diverged():
    class Diverged(EchoClient):
        def evaluate(self, parameters, config):
            return float("nan"), 1, {"accuracy": 0.1}

    (now,) = play(FedAvg(), lambda i: [EchoClient(0), Diverged(0)][i], 2, START).seen
    (failure,) = now.evaluated.failures
    assert (failure.client, failure.reason) == (1, "metric 'loss' is not finite")


def test_a_metric_that_only_some_clients_report_does_not_end_the_run():
    clients = [
        EchoClient(0, 1, {"m": 1.0, "list": [1.0]}),
        EchoClient(0, 3, {"list": [1.0, 2.0]}),
        EchoClient(0, 1, {"m": 4.0}),
    ]
    assert simulate(
        FedAvg(), lambda i, _: clients[i], 3, START, num_rounds=1
    ).train_metrics_clientapp[1] == {"loss": 1.0, "m": 2.5, "list": [1.0]}


def test_sampling_follows_the_seed_and_covers_everyone():
    one, again, other = (
        [
            now.trained.clients
            for now in play(
                FedAvg(),
                lambda i: EchoClient(0),
                10,
                START,
                30,
                on={"seed": seed, "clients_per_round": 3},
                evaluate_every=0,
            ).seen
        ]
        for seed in (1, 1, 2)
    )
    assert one == again != other
    assert all(len(chosen) == 3 for chosen in one)
    assert set().union(*one) == set(range(10))


# --- fedopt ---------------------------------------------------------------------------

# Algorithm 2 of Reddi et al. against a ten-line reference, and batch statistics.


# Before 1.30 Flower's own adaptive strategies fail on an array without axes.
FEDOPT_START = {"w": np.array([0.5, -1.0]), "b": np.array(2.0)}
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
    np.testing.assert_allclose(
        flat(play(kind(OPTIONS), Pull, 2, FEDOPT_START, ROUNDS)),
        reference(SECOND[kind]),
        rtol=1e-10,
    )


def test_counters_and_running_statistics_are_averaged():
    """Adam's normalised step would make a variance of 0.01 negative."""
    start = {
        "layer.weight": np.ones(2, np.float32),
        "layer.running_var": np.full(2, 0.01, np.float32),
        "layer.num_batches_tracked": np.int64(4),
    }
    client = Trains(lambda p, _: [p[0] - 1, p[1] - np.float32(0.005), p[2] + 2])
    result = arrays_of(
        play(FedAdam(FedOptOptions(server_learning_rate=1.0)), lambda i: client, 2, start)
    )
    np.testing.assert_allclose(result["layer.running_var"], 0.005, rtol=1e-6)
    counted = result["layer.num_batches_tracked"]
    assert (counted, counted.dtype, result["layer.weight"].dtype) == (6, np.int64, np.float32)
    np.testing.assert_allclose(
        result["layer.weight"], 1 - 0.1 / (np.sqrt(0.99 * 1e-6 + 0.01) + 1e-3), rtol=1e-5
    )


def test_an_empty_round_changes_no_moment():
    strategy, seen = FedAdam(OPTIONS), []
    note = lambda now: seen.append((strategy.m, strategy.v))
    play(strategy, that_fails(Pull, [2]), 2, FEDOPT_START, 3, callbacks=[note])
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

    result = play(strategy, Liar, 2, FEDOPT_START, 60, callbacks=[note])
    assert lengths[2] == pytest.approx(5 * lengths[1])
    goal = np.average([[3, 1, 1], [-1, 0.1, 0.1]], axis=0, weights=SIZES)
    assert np.abs(flat(result) - goal).max() < 0.3


# --- one strategy and then another ----------------------------------------------------

BEGIN = {"w": np.float32([1.0, -2.0])}


def flowers_own():
    return flower.FedAdam(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, eta=0.5)


def test_it_is_one_strategy_and_then_the_other_from_its_model():
    client = lambda i, _: EchoClient(i + 1, i + 1)
    whole = arrays_of(simulate(WarmStart(FedAvg(), 2, flowers_own()), client, 3, BEGIN, 5))
    half = arrays_of(simulate(FedAvg(), client, 3, BEGIN, 2))
    rest = arrays_of(
        play(flowers_own(), lambda i: EchoClient(i + 1, i + 1), 3, half, 5, first_round=3)
    )
    np.testing.assert_array_equal(whole["w"], rest["w"])


def halves(i, _):
    """Return a client whose shift shows which half it is."""
    return WarmStartClient({"first": lambda: EchoClient(1), "then": lambda: EchoClient(10)})


def test_the_message_says_which_half_of_the_client_answers():
    np.testing.assert_allclose(
        arrays_of(simulate(WarmStart(FedAvg(), 2, FedProx()), halves, 2, BEGIN, 5))["w"],
        BEGIN["w"] + 2 * 1 + 3 * 10,
    )


def test_a_client_of_two_halves_needs_the_name_of_the_half():
    refused(
        lambda: halves(0, None).fit([BEGIN["w"]], {}),
        r"warm-start-half = None .* must be WarmStart",
    )


def test_each_half_has_its_own_rules_for_replies():
    """Local's replies hold no arrays; in FedAvg's rounds such a reply is skipped."""
    silent = lambda: Trains(lambda *_: [])
    client = lambda i: (
        silent() if i == 0 else WarmStartClient({"first": silent, "then": lambda: EchoClient(1)})
    )
    rounds = play(WarmStart(Local(), 2, FedAvg()), client, 2, BEGIN, 4).seen
    assert [len(r.trained.failures) for r in rounds] == [0, 0, 1, 1]


def test_state_is_that_of_both_halves():
    strategy = WarmStart(FedDyn(FedDynOptions(1.0)), 1, FedDyn(FedDynOptions(2.0)))
    simulate(strategy, lambda i, _: EchoClient(1), 2, BEGIN, 3)
    state = strategy.state_dict()
    assert sorted(state) == ["first.h", "then.h"]
    other = WarmStart(FedDyn(), 1, FedDyn())
    other.load_state_dict(state)
    assert_arrays((other.first.h, other.then.h), (strategy.first.h, strategy.then.h))
    assert not np.array_equal(other.first.h, other.then.h)


def test_the_second_half_may_end_the_run():
    second = FedProx()
    second.finished = True
    assert len(play(WarmStart(FedAvg(), 2, second), lambda _: EchoClient(1), 2, BEGIN, 9).seen) == 3
