"""Heterogeneous quadratics, whose optima are known in closed form, through the real
clients and strategies.
"""

import numpy as np
import pytest

from fedapps.clients import FedAvgClient, FedProxClient, LocalClient
from fedapps.clients.base.store import MessageStore
from fedapps.strategies import FedAvg, FedProx, FedProxOptions, Local
from tests.helpers import arrays_in, arrays_of, exchanged, simulate
from tests.quadratics import CONFIG, CURVATURE, TARGET, quadratic


def final(strategy, kind, rounds, epochs, **config):
    config = {**CONFIG, "local-epochs": epochs, **config}
    result = simulate(
        strategy,
        lambda i, _: quadratic(kind, i),
        2,
        {"w": np.float32([5.0])},
        rounds,
        config,
        evaluate_every=0,
    )
    return arrays_of(result)["w"][0]


def test_fedavg_with_one_step_reaches_the_optimum():
    assert final(FedAvg(), FedAvgClient, 150, 1) == pytest.approx(10 / 11, abs=1e-4)


@pytest.mark.parametrize("epochs", [5, 50])
def test_fedavg_with_many_steps_reaches_its_known_biased_point(epochs):
    """K gradient steps contract by a_i = (1 - rate h_i)^K, so the fixed point weighs
    targets by 1 - a_i.
    """
    pull = [1 - (1 - CONFIG["learning-rate"] * h) ** epochs for h in CURVATURE]
    want = sum(p * t for p, t in zip(pull, TARGET, strict=True)) / sum(pull)
    assert final(FedAvg(), FedAvgClient, 30, epochs) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("mu", [0.5, 5.0])
def test_fedprox_solved_to_the_end_reaches_its_fixed_point(mu):
    """Each client minimises h/2 (w - t)^2 + mu/2 (w - w_g)^2, so w_g's fixed point
    weighs targets by h / (h + mu).
    """
    pull = [h / (h + mu) for h in CURVATURE]
    want = sum(p * t for p, t in zip(pull, TARGET, strict=True)) / sum(pull)
    result = final(FedProx(FedProxOptions(mu)), FedProxClient, 20, 60, **{"learning-rate": 0.1})
    assert result == pytest.approx(want, abs=1e-4)


def test_local_clients_reach_their_own_optima_and_send_nothing(monkeypatch):
    """A training message brings no array to a client, and its reply none to the
    server.
    """
    stores, rounds, seen = {}, [], exchanged(monkeypatch)

    def client(i, context):
        stores[i] = MessageStore(context.state)
        return quadratic(LocalClient, i, stores[i])

    config = {**CONFIG, "local-epochs": 20}
    result = simulate(
        Local(),
        client,
        2,
        {"w": np.float32([5.0])},
        60,
        config,
        callbacks=[rounds.append],
        evaluate_every=0,
    )
    for i in range(2):
        assert stores[i].load("model", {}, before=False)[0][0] == pytest.approx(TARGET[i], abs=1e-4)
    assert arrays_of(result)["w"][0] == 5.0  # the server's model stays what it was
    assert [arrays_in(*both) for kind, *both in seen if kind == "train"] == [[]] * 2 * 60
    assert len(rounds) == 60
    assert all(r.trained.bytes_up < 100 * 2 for r in rounds)
