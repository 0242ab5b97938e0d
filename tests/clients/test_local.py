"""Local under sampling: every client trains, and takes as many steps as a client of a
sampled method on average.
"""

import pytest

from fedapps.algorithms.common.steps import Eager
from fedapps.clients import FedAvgClient, LocalClient
from fedapps.strategies import Local
from tests.clients.federation import federate, initial
from tests.helpers import assert_arrays, blobs, small_net, that_fails

TRAIN = {
    "learning-rate": 0.05,
    "lr-decay": 1.0,
    "momentum": 0.9,
    "weight-decay": 1e-3,
    "batch-size": 7,
    "local-epochs": 2,
    "seed": 3,
}
STEPS = 12  # 36 samples in batches of 7, the last of one sample, twice


def run(rounds, a_round, clients=5, fails=lambda i, server_round: False, **config):
    """Return the stores of the clients after ``rounds`` rounds in which another method
    would train ``a_round`` of them, the result, and the steps of each client by round.
    """
    stores, taken = {}, []

    def make(i, store):
        stores[i] = store
        return that_fails(LocalClient, fails)(small_net, blobs(i), i, store)

    def note(_):
        kept = [store.load("progress", {}, before=False) for store in stores.values()]
        taken.append([int(progress[0][1]) for progress in kept])

    asked = {"callbacks": [note], "evaluate_every": 0}
    _, _, result = federate(
        Local(), make, clients, initial(), rounds, {**TRAIN, **config}, a_round, **asked
    )
    return stores, result, taken


def alone(i, visits, **config):
    """Return the model of a client that trains alone for this many rounds of a
    federated client.
    """
    client = FedAvgClient(small_net, blobs(i), i)
    arrays = client.fresh_arrays("model", TRAIN, own=False)
    for visit in range(1, visits + 1):
        arrays, _, _ = client.fit(arrays, {**TRAIN, **config, "server-round": visit})
    return arrays


@pytest.mark.parametrize(
    ("rounds", "a_round", "visits"), [(10, 1, 2), (5, 2, 2), (3, 5, 3), (3, 0, 3)]
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_in_shares_is_the_same_as_whole_rounds_of_training(
    rounds, a_round, visits, optimizer
):
    """Ten fifths of a round of 12 steps (2, 2, 3, ... at a time), momentum and partial
    batches included, are two rounds.
    """
    stores, *_ = run(rounds, a_round, optimizer=optimizer)
    for i in range(5):
        assert_arrays(
            stores[i].load("model", {}, before=False),
            alone(i, visits, optimizer=optimizer),
            rtol=1e-05,
            # Adam divides by roots that may be small: processors differ more
            atol=1e-05 if optimizer == "sgd" else 1e-04,
        )


@pytest.mark.parametrize(
    ("a_round", "after"),
    [(1, [2, 4, 7, 9, 12, 14]), (2, [4, 9, 14, 19, 24, 28]), (5, [12, 24, 36, 48, 60, 72])],
)
def test_after_t_rounds_every_client_has_taken_its_share_of_the_steps(a_round, after):
    assert run(len(after), a_round)[2] == [[steps] * 5 for steps in after]


def test_what_counts_as_a_step_is_a_step(monkeypatch):
    taken, step = [], Eager.step
    monkeypatch.setattr("fedapps.clients.steps.trained_net.by_cohort", lambda *_: False)
    monkeypatch.setattr(Eager, "step", lambda self, *args: taken.append(1) or step(self, *args))
    run(7, 1)
    assert len(taken) == 5 * int(7 * STEPS / 5)


def test_a_share_of_less_than_a_step_is_carried_over():
    # two steps a visit
    _, result, taken = run(8, 1, clients=15, **{"local-epochs": 1, "batch-size": 18})
    assert taken == [[0] * 15] * 7 + [[1] * 15]
    assert ["loss" in metrics for metrics in result.train_metrics_clientapp.values()] == [
        False
    ] * 7 + [True]


def test_a_client_that_is_out_of_reach_misses_its_share_of_that_round_only():
    away = lambda i, server_round: i == 3 and server_round in (2, 3)
    assert run(5, 2, fails=away)[2][-1] == [24, 24, 24, 14, 24]
