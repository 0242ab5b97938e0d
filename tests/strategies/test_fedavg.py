import numpy as np
import pytest

from clients.fedavg import FedAvgClient
from fedapps.engines.inline import InlineGrid
from strategies import ClientGrid, FedAvg, FedProx, FedProxOptions
from tests.helpers import EchoClient, arrays_of, blobs, simulate, small_net

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

        class Spy(EchoClient):
            def __init__(self, i):
                super().__init__(0)
                self.i = i

            def fit(self, parameters, config):
                seen.append((config["server-round"], self.i))
                return super().fit(parameters, config)

        from clients import to_client_app

        app = to_client_app(lambda context: Spy(context.node_config["partition-id"]))
        client_grid = ClientGrid(InlineGrid(app, 10), seed=seed, clients_per_round=3)
        simulate(FedAvg(), None, 10, START, num_rounds=30, grid=client_grid, evaluate_every=0)
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


def test_flowers_own_strategies_run_in_the_same_loop():
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAdam

    from clients import to_client_app
    from strategies import run_rounds

    app = to_client_app(lambda context: EchoClient(1.0, 1))
    client_grid = ClientGrid(InlineGrid(app, 6), seed=0, clients_per_round=2)
    strategy = FedAdam(eta=0.1, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    result = run_rounds(
        strategy,
        client_grid,
        ArrayRecord({"w": Array(np.zeros(2, np.float32))}),
        3,
        evaluate_every=3,
    )
    assert np.all(result.arrays["w"].numpy() > 0.05)  # every client pushes up, so does the server
    assert list(result.evaluate_metrics_clientapp) == [3]
    assert len(client_grid.last.clients) == 6  # evaluation reaches everyone


def test_one_client_one_batch_one_epoch_is_a_gradient_step():
    """FedAvg with full-batch single steps is gradient descent on the pooled loss,
    whatever the heterogeneity.
    """
    import torch
    from torch.nn import functional

    data = [blobs(seed=i, n=50, shift=0.3 * i) for i in range(3)]
    config = {
        "learning-rate": 0.1,
        "lr-decay": 1.0,
        "momentum": 0.0,
        "weight-decay": 0.0,
        "local-epochs": 1,
        "batch-size": 1000,
    }
    model = small_net(5)
    initial = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    result = simulate(
        FedAvg(),
        lambda i, _: FedAvgClient(small_net, data[i], i),
        3,
        initial,
        20,
        config,
        evaluate_every=0,
    )
    x, y = torch.cat([d.train.x for d in data]), torch.cat([d.train.y for d in data])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(arrays_of(result)[name], tensor.numpy(), atol=2e-6)


@pytest.mark.parametrize("mu", [-1.0, float("nan")])
def test_fedprox_rejects_bad_mu(mu):
    with pytest.raises(ValueError, match=r"mu = .*choose a value in \[0, inf\)"):
        FedProxOptions(mu)


def test_fedprox_without_the_term_is_fedavg_to_the_last_bit():
    data = [blobs(seed=i, shift=i) for i in range(3)]
    initial = {name: t.numpy().copy() for name, t in small_net(5).state_dict().items()}
    from clients.fedprox import FedProxClient

    a = simulate(FedAvg(), lambda i, _: FedAvgClient(small_net, data[i], i), 3, initial, 3)
    b = simulate(
        FedProx(FedProxOptions(0.0)),
        lambda i, _: FedProxClient(small_net, data[i], i),
        3,
        initial,
        3,
    )
    for name in initial:
        np.testing.assert_array_equal(arrays_of(a)[name], arrays_of(b)[name])
