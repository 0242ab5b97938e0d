"""FedDyn on heterogeneous quadratics, whose joint optimum is known, with few clients
per round; and its client's steps.
"""

import numpy as np
import pytest
from flwr.app import RecordDict

from fedapps.clients import FedAvgClient, FedDynClient, MessageStore
from fedapps.strategies import FedAvg, FedDyn, FedDynOptions
from tests.helpers import EchoClient, Trains, arrays_of, play, refused
from tests.quadratics import CONFIG as PLAIN, quadratic

ALPHA = 0.7
M, D = 5, 3
RNG = np.random.default_rng(4)
CURVATURE = RNG.uniform(0.5, 4, (M, D))  # f_i(x) = sum_d a_id / 2 (x_d - t_id)^2
TARGET = RNG.normal(size=(M, D)) * 3
OPTIMUM = (CURVATURE * TARGET).sum(0) / CURVATURE.sum(0)


def solving(i, memory):
    """Return a client that solves its local problem in closed form and keeps g."""

    def solve(sent, config):
        start, alpha = sent[0], config["feddyn-alpha"]
        a, g = CURVATURE[i], memory.get(i, np.zeros(D))
        # gradient: a (theta - t) - g + alpha (theta - start) = 0
        theta = (a * TARGET[i] + g + alpha * start) / (a + alpha)
        memory[i] = g - alpha * (theta - start)
        return [theta]

    return Trains(solve, i + 1)


def final(rounds, sampled):
    """Return the last model, the strategy and what the clients keep."""
    memory, strategy, on = (
        {},
        FedDyn(FedDynOptions(ALPHA)),
        {"seed": 3, "clients_per_round": sampled},
    )
    start, client = {"x": np.zeros(D)}, lambda i: solving(i, memory)
    result = play(strategy, client, M, start, rounds, on=on, evaluate_every=0)
    return arrays_of(result)["x"], strategy, memory


@pytest.mark.parametrize(("sampled", "rounds"), [(1, 600), (2, 400), (5, 400)])
def test_the_fixed_point_is_the_joint_optimum_for_any_participation(sampled, rounds):
    result, _, _ = final(rounds, sampled)
    np.testing.assert_allclose(result, OPTIMUM, atol=1e-6)


def test_h_is_the_mean_of_g_over_all_clients_including_absent_ones():
    _, strategy, memory = final(7, 2)
    np.testing.assert_allclose(strategy.h, sum(memory.values()) / M, atol=1e-12)


def test_statistics_and_counters_are_averaged_and_not_corrected():
    start = {
        "w": np.float32([1.0]),
        "n.running_mean": np.float32([2.0]),
        "n.num_batches_tracked": np.int64(7),
    }
    end = arrays_of(play(FedDyn(FedDynOptions(ALPHA)), lambda i: EchoClient(2 * i), 2, start))
    assert end["n.running_mean"] == pytest.approx(3.0)
    assert (end["n.num_batches_tracked"], end["n.num_batches_tracked"].dtype) == (8, np.int64)
    assert end["w"] == pytest.approx(1 + 1 + 1)  # mean update 1, and -h / alpha = 1


# --- the client -----------------------------------------------------------------------


def test_the_clients_steps_are_those_of_its_local_problem():
    client = quadratic(FedDynClient, 1)
    config = {**PLAIN, "local-epochs": 3, "feddyn-alpha": ALPHA}
    g = 0.0
    for start in (5.0, -2.0):  # in the second round g is not 0
        w = start
        for _ in range(3):
            w -= 0.02 * (10 * (w - 1) - g + ALPHA * (w - start))
        g -= ALPHA * (w - start)
        (got,), _, _ = client.fit([np.float32([start])], config)
        assert got[0] == pytest.approx(w, rel=1e-5)
        assert client.store.load("feddyn", config, before=True)[0][0] == pytest.approx(g, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), [(FedDyn, FedDynClient), (FedAvg, FedAvgClient)])
def test_many_local_steps_and_one_client_a_round(method, kind):
    """FedDyn reaches 10/11, the optimum of both; FedAvg goes from one client's to the
    other's.
    """
    stores = [MessageStore(RecordDict()) for _ in range(2)]
    strategy = FedDyn(FedDynOptions(1.0)) if method is FedDyn else FedAvg()
    client, on = lambda i: quadratic(kind, i, stores[i]), {"seed": 3, "clients_per_round": 1}
    config, start = {**PLAIN, "local-epochs": 60}, {"w": np.float32([5.0])}
    result = play(strategy, client, 2, start, 60, config, on=on, evaluate_every=0)
    off = abs(arrays_of(result)["w"][0] - 10 / 11)
    assert off < 1e-3 if method is FedDyn else off > 0.05


def test_training_that_diverged_is_not_kept():
    client = quadratic(FedDynClient, 1)
    config = {**PLAIN, "learning-rate": 1e4, "local-epochs": 50, "feddyn-alpha": ALPHA}
    refused(lambda: client.fit([np.float32([5.0])], config), r"lower train\.learning-rate")
    assert client.store.load("feddyn", {}, before=False) is None
