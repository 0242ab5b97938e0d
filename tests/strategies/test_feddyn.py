"""FedDyn on heterogeneous quadratics, whose joint optimum is known, with few clients
per round; and its client's steps.
"""

import numpy as np
import pytest
from flwr.client import NumPyClient

from fedapps.clients import FedAvgClient, FedDynClient
from fedapps.clients.base.store import MessageStore
from fedapps.strategies import ClientGrid, FedAvg, FedDyn, FedDynOptions
from tests.helpers import EchoClient, arrays_of, simulate
from tests.quadratics import CONFIG as PLAIN
from tests.quadratics import quadratic

ALPHA = 0.7
M, D = 5, 3
RNG = np.random.default_rng(4)
CURVATURE = RNG.uniform(0.5, 4, (M, D))  # f_i(x) = sum_d a_id / 2 (x_d - t_id)^2
TARGET = RNG.normal(size=(M, D)) * 3
OPTIMUM = (CURVATURE * TARGET).sum(0) / CURVATURE.sum(0)


class Quadratic(NumPyClient):
    """Solves its local problem in closed form; keeps g."""

    def __init__(self, i, memory):
        self.i, self.memory = i, memory

    def fit(self, parameters, config):
        start, alpha = parameters[0], config["feddyn-alpha"]
        a, g = CURVATURE[self.i], self.memory.get(self.i, np.zeros(D))
        # gradient: a (theta - t) - g + alpha (theta - start) = 0
        theta = (a * TARGET[self.i] + g + alpha * start) / (a + alpha)
        self.memory[self.i] = g - alpha * (theta - start)
        return [theta], self.i + 1, {"loss": 1.0}

    def evaluate(self, parameters, config):
        return 0.0, 1, {}


class WithoutH(FedDyn):
    """The program of Shen et al., which omits h."""

    def aggregate_train(self, server_round, replies):
        self.h = None
        return super().aggregate_train(server_round, replies)


def final(kind, rounds=300, sampled=2, memory=None, **options):
    memory = {} if memory is None else memory
    strategy = kind(FedDynOptions(ALPHA))
    grid = sampled_grid(lambda i, _: Quadratic(i, memory), M, sampled)
    result = simulate(
        strategy, None, M, {"x": np.zeros(D)}, rounds, grid=grid, evaluate_every=0, **options
    )
    return arrays_of(result)["x"], strategy


def sampled_grid(client_fn, count, sampled):
    from fedapps.clients import to_client_app
    from fedapps.engines.inline import InlineGrid

    app = to_client_app(
        lambda context: client_fn(int(context.node_config["partition-id"]), context)
    )
    return ClientGrid(InlineGrid(app, count), seed=3, clients_per_round=sampled)


@pytest.mark.parametrize("sampled", [1, 2, 5])
def test_the_fixed_point_is_the_joint_optimum_for_any_participation(sampled):
    result, _ = final(FedDyn, 600, sampled)
    np.testing.assert_allclose(result, OPTIMUM, atol=1e-6)


def test_without_h_it_stalls_under_partial_participation():
    result, _ = final(WithoutH, 600, 2)
    assert np.abs(result - OPTIMUM).max() > 0.1


def test_h_is_the_mean_of_g_over_all_clients_including_absent_ones():
    memory = {}
    _, strategy = final(FedDyn, 7, 2, memory)
    np.testing.assert_allclose(strategy.h, sum(memory.values()) / M, atol=1e-12)


def test_with_all_clients_h_cancels_in_the_sum_of_gradients():
    """At the fixed point g_i is the gradient of f_i, and their mean is 0."""
    memory = {}
    _, strategy = final(FedDyn, 400, 5, memory)
    for i, g in memory.items():
        np.testing.assert_allclose(g, CURVATURE[i] * (OPTIMUM - TARGET[i]), atol=1e-6)
    np.testing.assert_allclose(strategy.h, 0, atol=1e-6)


def test_statistics_and_counters_are_averaged_and_not_corrected():
    start = {
        "w": np.float32([1.0]),
        "n.running_mean": np.float32([2.0]),
        "n.num_batches_tracked": np.int64(7),
    }
    result = simulate(FedDyn(FedDynOptions(ALPHA)), lambda i, _: EchoClient(2 * i), 2, start, 1)
    end = arrays_of(result)
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
    stores = {}

    def client(i, context):
        stores.setdefault(i, MessageStore(context.state))
        return quadratic(kind, i, stores[i])

    strategy = FedDyn(FedDynOptions(1.0)) if method is FedDyn else FedAvg()
    grid = sampled_grid(client, 2, 1)
    config = {**PLAIN, "local-epochs": 60}
    result = simulate(
        strategy, None, 2, {"w": np.float32([5.0])}, 60, config, grid=grid, evaluate_every=0
    )
    off = abs(arrays_of(result)["w"][0] - 10 / 11)
    assert off < 1e-3 if method is FedDyn else off > 0.05


def test_training_that_diverged_is_not_kept():
    client = quadratic(FedDynClient, 1)
    with pytest.raises(ValueError, match=r"lower train\.learning-rate"):
        client.fit(
            [np.float32([5.0])],
            {**PLAIN, "learning-rate": 1e4, "local-epochs": 50, "feddyn-alpha": ALPHA},
        )
    assert client.store.load("feddyn", {}, before=False) is None


def test_the_state_of_another_net_is_a_clear_error():
    client = quadratic(FedDynClient, 1)
    client.store.save("feddyn", [np.zeros(4, np.float32)], {})
    with pytest.raises(ValueError, match="g_i of another architecture"):
        client.fit([np.float32([5.0])], {**PLAIN, "local-epochs": 1, "feddyn-alpha": ALPHA})
