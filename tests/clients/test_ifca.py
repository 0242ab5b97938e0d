"""IFCA: one cluster is FedAvg, separated clusters are recovered, a client uses the
model of least training loss, and clusters outlive failures, sampling and a resume.
"""

import itertools
import logging

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn

from fedapps.algorithms.contract.personal import IFCASent
from fedapps.algorithms.personal.clusters import farthest_first, grouped
from fedapps.clients import ClientData, FedAvgClient, IFCAClient, Split
from fedapps.clients.base.evaluation import Objective
from fedapps.clients.base.store import MessageStore
from fedapps.strategies import IFCA, FedAvg, IFCAOptions
from fedapps.strategies.ifca import CLUSTER
from fedapps.testing import exams
from fedapps.testing.problems import Blobs, Problem
from tests.helpers import arrays_of, assert_arrays, run_inline, simulate

SLOPES = (3.0, -2.0)  # of the two clusters
CONFIG = {
    "learning-rate": 0.1,
    "lr-decay": 1.0,
    "momentum": 0.9,
    "weight-decay": 0.0,
    "batch-size": 7,
    "local-epochs": 2,
    "seed": 3,
}


def squared(outputs, y):
    return ((outputs[:, 0] - y) ** 2).mean()


class Lines(Problem):
    """Six clients with a line each, y = s x + noise, s by the parity of the client. The
    net starts at 0 from every seed, unless ``drawn``.
    """

    objective = Objective(
        squared,
        lambda net, data: {
            "loss": (loss := squared(net(data.x), data.y).item()),
            "rmse": loss**0.5,
        },
    )
    num_outputs = 1

    def __init__(self, drawn=False, num_clients=6):
        self.drawn, self.num_clients = drawn, num_clients

    def model_fn(self, seed):
        net = nn.Linear(1, 1)
        with torch.no_grad():
            rng = np.random.default_rng(seed)
            for p in net.parameters():
                p.copy_(torch.tensor(rng.normal(size=p.shape) if self.drawn else np.zeros(p.shape)))
        net.head = ("",)
        return net

    def client_data(self, client_id, num_clients):
        rng = np.random.default_rng(int(client_id))
        x = rng.normal(size=(30, 1))
        y = SLOPES[int(client_id) % 2] * x[:, 0] + 0.1 * rng.normal(size=30)
        x, y = (torch.tensor(a, dtype=torch.float32) for a in (x, y))
        return ClientData(*(Split(x[part], y[part]) for part in np.split(np.arange(30), [18, 24])))


def client_of(problem, stores, kind=IFCAClient):
    return lambda i, _: kind(
        problem.model_fn,
        problem.client_data(i, problem.num_clients),
        i,
        stores.setdefault(i, MessageStore(RecordDict())),
        objective=problem.objective,
    )


def played(strategy, problem, rounds, kind=IFCAClient):
    return simulate(
        strategy,
        client_of(problem, {}, kind),
        problem.num_clients,
        problem.initial_arrays(),
        rounds,
        CONFIG,
    )


@pytest.mark.parametrize("start", ["diverse", "random"])
def test_one_cluster_is_fedavg_to_the_bit(start):
    mine = exams.pair("ifca", IFCAOptions(clusters=1, start=start))
    exams.reduces(mine, exams.pair("fedavg"), tolerance=0.0)


@pytest.mark.parametrize(("start", "drawn"), [("diverse", False), ("random", True)])
def test_two_lines_are_recovered(start, drawn):
    strategy = IFCA(IFCAOptions(start=start))
    result = played(strategy, Lines(drawn), 15)
    slopes = [
        float(arrays_of(result)["weight"][0, 0]),
        float(strategy.others[1]["weight"][0, 0]),
    ]
    assert sorted(slopes) == pytest.approx(sorted(SLOPES), abs=0.1)


def test_the_average_cannot_fit_both_lines_and_the_clusters_do():
    ours = played(IFCA(), Lines(), 15)
    theirs = played(FedAvg(), Lines(), 15, FedAvgClient)
    assert ours.evaluate_metrics_clientapp[15]["rmse"] < 0.15
    assert theirs.evaluate_metrics_clientapp[15]["rmse"] > 2


def test_random_starts_of_a_net_without_a_random_start_are_refused():
    strategy = IFCA(IFCAOptions(start="random"))
    with pytest.raises(RuntimeError, match="starts at the same point from every seed"):
        played(strategy, Lines(drawn=False), 3)


def test_a_client_is_scored_with_the_model_of_least_training_loss():
    problem = Lines()
    arrays = [np.float32(a) for s in (*SLOPES, 0.5) for a in ([[s]], [0.0])]
    config = IFCASent(3, [0, 1, 2]).to_config() | {"seed": 0}
    for i in range(2):
        client = client_of(problem, {})(i, None)
        # its test samples are of the other line: they must not decide
        other = problem.client_data(1 - i, 6).test
        client.data = ClientData(client.data.train, client.data.validation, other)
        loss, _, metrics = client.evaluate(arrays, config)
        assert metrics["cluster"] == i
        assert loss == pytest.approx(
            float(((SLOPES[i] * other.x[:, 0] - other.y) ** 2).mean()), rel=1e-5
        )


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_without_a_finite_loss_is_nobodys(place):
    good = [np.float32([[SLOPES[0]]]), np.float32([0.0])]
    models = [good, good]
    models[place] = [np.float32([[np.nan]]), np.float32([0.0])]
    config = IFCASent(2, [0, 1]).to_config() | {"seed": 0}
    client = client_of(Lines(), {})(0, None)
    assert client.choose([*models[0], *models[1]], config)[0] == 1 - place


def test_a_cluster_that_nobody_chooses_keeps_its_model():
    strategy = IFCA(IFCAOptions(clusters=2))
    first = {name: np.full(a.shape, 50.0, a.dtype) for name, a in Lines().initial_arrays().items()}
    strategy.load_state_dict({CLUSTER.format(1) + name: a for name, a in first.items()})
    played(strategy, Lines(), 3)
    assert_arrays(first, strategy.others[1])


def test_three_clusters_keep_their_models_apart():
    problem = Lines()
    models = [
        {name: np.full_like(a, value) for name, a in problem.initial_arrays().items()}
        for value in (-50.0, 50.0, 0.0)  # all clients are nearest to the last
    ]
    strategy = IFCA(IFCAOptions(clusters=3))
    strategy.load_state_dict(
        {CLUSTER.format(j) + name: a for j in (1, 2) for name, a in models[j].items()}
    )
    result = simulate(strategy, client_of(problem, {}), 6, models[0], 1, CONFIG)
    for name, array in arrays_of(result).items():
        np.testing.assert_array_equal(array, models[0][name])
        np.testing.assert_array_equal(strategy.others[1][name], models[1][name])
        assert not np.array_equal(strategy.others[2][name], models[2][name])


@pytest.mark.slow
@pytest.mark.parametrize("options", [IFCAOptions(3), IFCAOptions(start="random")])
def test_it_repeats_resumes_and_survives_failures(options):
    exams.every(exams.pair("ifca", options), Blobs((60, 25, 40, 33, 30)))


def test_too_few_replies_are_grouped_later(caplog):
    from fedapps.clients import to_client_app
    from fedapps.engines.inline import InlineGrid
    from fedapps.strategies import ClientGrid

    problem, stores = Lines(), {}
    make = client_of(problem, stores)
    app = to_client_app(lambda context: make(int(context.node_config["partition-id"]), context))
    strategy = IFCA(IFCAOptions(clusters=3))
    grid = ClientGrid(InlineGrid(app, 6), seed=1, clients_per_round=2)
    with caplog.at_level(logging.WARNING, "flwr"):
        simulate(strategy, make, 6, problem.initial_arrays(), 4, CONFIG, grid=grid)
    assert not strategy.others
    assert "cannot be grouped into ifca.clusters = 3" in caplog.text
    strategy = IFCA()
    grid = ClientGrid(InlineGrid(app, 6), seed=1, clients_per_round=3)
    result = simulate(strategy, make, 6, problem.initial_arrays(), 25, CONFIG, grid=grid)
    slopes = [float(arrays_of(result)["weight"][0, 0]), float(strategy.others[1]["weight"][0, 0])]
    assert sorted(slopes) == pytest.approx(sorted(SLOPES), abs=0.2)


def test_groups_are_those_of_least_squares():
    """Of all 2-groupings of few points that k-means can end at, none moves a point."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(4, 3)), rng.normal(size=(3, 3)) + 6])
    groups = grouped(points, 2)

    def spread(groups):
        return sum(
            ((own := points[np.array(groups) == j]) - own.mean(0)).__pow__(2).sum() for j in (0, 1)
        )

    best = min((g for g in itertools.product((0, 1), repeat=7) if 0 < sum(g) < 7), key=spread)
    assert spread(groups) == pytest.approx(spread(best))


def test_starts_are_farthest_from_the_mean_and_then_from_each_other():
    """Mean 5.4: 14 is the farthest, then 0, then 10, 4 away from 14, then 2."""
    points = np.array([[10.0], [0.0], [1.0], [2.0], [14.0]])
    assert farthest_first(points, 4) == [4, 1, 0, 3]


def test_groups_follow_their_means_and_not_their_starts():
    """0 and 9 start, and 4 is nearer to 0; but the means are 2 and 5.87 then (the
    medians 2 and 6.1), and 4 is nearer to the second.
    """
    points = np.array([[0.0], [4.0], *[[4.6]] * 3, *[[6.1]] * 3, [9.0]])
    assert farthest_first(points, 2) == [0, 8]
    assert grouped(points, 2).tolist() == [0, *[1] * 8]


def test_every_group_has_a_point_even_of_equal_ones():
    assert sorted(set(grouped(np.zeros((5, 2)), 3).tolist())) == [0, 1, 2]
    with pytest.raises(ValueError, match="3 groups of 2 points"):
        grouped(np.zeros((2, 2)), 3)


def test_a_client_is_exported_with_its_clusters_model(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'app'")
    from safetensors.numpy import load_file

    from fedapps.commands.parser import main

    run_inline(
        tmp_path / "run",
        "method=ifca",
        **{"num-rounds": 3, "num-clients": 6, "data.partition": "pathological"},
    )
    arrays = []
    for client in range(6):
        out = tmp_path / f"{client}.safetensors"
        assert (
            main(["export", str(tmp_path / "run"), "--client", str(client), "--out", str(out)]) == 0
        )
        arrays.append(load_file(out))
    name = next(iter(arrays[0]))
    assert 1 < len({a[name].tobytes() for a in arrays}) <= 2
