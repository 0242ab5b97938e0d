import numpy as np

from fedapps.strategies import FedAvg
from tests.helpers import EchoClient, arrays_of, play, simulate

START = {"w": np.zeros(2, np.float32), "n": np.int64(0)}


def test_average_by_hand():
    shifts, sizes = [1.0, 2.0, 6.0], [1, 2, 1]
    result = simulate(
        FedAvg(), lambda i, _: EchoClient(shifts[i], sizes[i]), 3, START, num_rounds=2
    )
    per_round = (1 + 4 + 6) / 4
    np.testing.assert_allclose(arrays_of(result)["w"], 2 * per_round)
    assert arrays_of(result)["n"].dtype == np.int64  # a counter stays a counter
    assert list(arrays_of(result)) == ["w", "n"]  # names survive the trip through NumPyClient


def test_metrics_are_weighted_by_samples():
    clients = [
        EchoClient(0, 1, {"m": 1.0, "curve": [0.0, 1.0]}),
        EchoClient(0, 3, {"m": 5.0, "curve": [4.0, 5.0]}),
    ]
    result = simulate(FedAvg(), lambda i, _: clients[i], 2, START, num_rounds=1)
    assert result.train_metrics_clientapp[1]["m"] == 4.0
    assert result.evaluate_metrics_clientapp[1]["curve"] == [3.0, 4.0]


def test_a_metric_that_only_some_clients_report_does_not_end_the_run():
    clients = [
        EchoClient(0, 1, {"m": 1.0, "list": [1.0]}),
        EchoClient(0, 3, {"list": [1.0, 2.0]}),
        EchoClient(0, 1, {"m": 4.0}),
    ]
    result = simulate(FedAvg(), lambda i, _: clients[i], 3, START, num_rounds=1)
    assert result.train_metrics_clientapp[1] == {"loss": 1.0, "m": 2.5, "list": [1.0]}


def test_sampling_follows_the_seed_and_covers_everyone():
    def sampled(seed):
        seen = []

        client = lambda i: EchoClient(0, heard=lambda c: seen.append((c["server-round"], i)))
        on = {"seed": seed, "clients_per_round": 3}
        play(FedAvg(), client, 10, START, 30, on=on, evaluate_every=0)
        return seen

    first = sampled(1)
    assert first == sampled(1)
    assert first != sampled(2)
    rounds = [{i for r, i in first if r == n} for n in range(1, 31)]
    assert all(len(chosen) == 3 for chosen in rounds)
    assert set.union(*rounds) == set(range(10))


def test_fraction_train_is_kept_from_flower():
    result = simulate(
        FedAvg(fraction_train=0.5, fraction_evaluate=0),
        lambda i, _: EchoClient(0, 1, {"one": 1.0}),
        4,
        START,
        1,
    )
    assert result.train_metrics_clientapp[1]["one"] == 1.0
    assert not result.evaluate_metrics_clientapp
