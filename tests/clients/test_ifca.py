"""IFCA: one cluster is FedAvg, separated clusters are recovered, a client uses the
model of least training loss, and clusters outlive failures, sampling and a resume.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.algorithms.contract.sent import IFCASent
from fedapps.algorithms.personal.clusters import farthest_first, grouped
from fedapps.clients import ClientData, IFCAClient, Split
from fedapps.clients.base.evaluation import Objective
from fedapps.strategies import IFCA, IFCAOptions
from fedapps.strategies.ifca import CLUSTER
from fedapps.testing import exams
from fedapps.testing.problems import Blobs, Problem
from tests.clients.federation import federate
from tests.helpers import assert_arrays, refused

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
    num_clients = 6

    def __init__(self, drawn=False):
        self.drawn = drawn

    def model_fn(self, seed):
        net = nn.Linear(1, 1)
        rng = np.random.default_rng(seed)
        for p in net.parameters():
            p.data.copy_(
                torch.tensor(rng.normal(size=p.shape) if self.drawn else np.zeros(p.shape))
            )
        net.head = ("",)
        return net

    def client_data(self, client_id, num_clients):
        rng = np.random.default_rng(int(client_id))
        x = rng.normal(size=(30, 1))
        y = SLOPES[int(client_id) % 2] * x[:, 0] + 0.1 * rng.normal(size=30)
        x, y = (torch.tensor(a, dtype=torch.float32) for a in (x, y))
        return ClientData(*(Split(x[part], y[part]) for part in np.split(np.arange(30), [18, 24])))


def client_of(i, store=None, problem=None):
    problem = problem or Lines()
    data = problem.client_data(i, problem.num_clients)
    return IFCAClient(problem.model_fn, data, i, store, objective=problem.objective)


def played(strategy, rounds, problem=None, start=None, **options):
    problem = problem or Lines()
    start = start or problem.initial_arrays()
    return federate(
        strategy, partial(client_of, problem=problem), 6, start, rounds, CONFIG, **options
    )


def slopes_of(arrays, strategy):
    """Return the slopes of both clusters in order."""
    return sorted(float(model["weight"][0, 0]) for model in (arrays, strategy.others[1]))


@pytest.mark.parametrize("start", ["diverse", "random"])
def test_one_cluster_is_fedavg_to_the_bit(start):
    mine = exams.pair("ifca", IFCAOptions(clusters=1, start=start))
    exams.reduces(mine, exams.pair("fedavg"), tolerance=0.0)


@pytest.mark.parametrize(("start", "drawn"), [("diverse", False), ("random", True)])
def test_two_lines_are_recovered(start, drawn):
    strategy = IFCA(IFCAOptions(start=start))
    arrays, _, result = played(strategy, 15, Lines(drawn))
    assert slopes_of(arrays, strategy) == pytest.approx(sorted(SLOPES), abs=0.1)
    assert result.evaluate_metrics_clientapp[15]["rmse"] < 0.15


def test_random_starts_of_a_net_without_a_random_start_are_refused():
    refused(
        lambda: played(IFCA(IFCAOptions(start="random")), 3),
        "starts at the same point from every seed",
        RuntimeError,
    )


def test_a_client_is_scored_with_the_model_of_least_training_loss_and_exports_it():
    arrays = [np.float32(a) for s in (*SLOPES, 0.5) for a in ([[s]], [0.0])]
    config = IFCASent(3, [0, 1, 2]).to_config() | {"seed": 0}
    for i in range(2):
        client = client_of(i)
        # its test samples are of the other line: they must not decide
        other = Lines().client_data(1 - i, 6).test
        client.data = replace(client.data, test=other)
        loss, _, metrics = client.evaluate(arrays, config)
        assert metrics["cluster"] == i
        assert loss == pytest.approx(
            float(((SLOPES[i] * other.x[:, 0] - other.y) ** 2).mean()), rel=1e-5
        )
        # an export is told the first cluster's model only
        exported, _ = client.personal_state_dict(arrays[:2], {"seed": 0})
        assert exported["weight"] == SLOPES[i]


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_without_a_finite_loss_is_nobodys(place):
    good = [np.float32([[SLOPES[0]]]), np.float32([0.0])]
    models = [good, good]
    models[place] = [np.float32([[np.nan]]), np.float32([0.0])]
    config = IFCASent(2, [0, 1]).to_config() | {"seed": 0}
    assert client_of(0).choose([*models[0], *models[1]], config)[0] == 1 - place


def test_clusters_that_nobody_chooses_keep_their_models():
    models = [
        {name: np.full_like(a, value) for name, a in Lines().initial_arrays().items()}
        for value in (-50.0, 50.0, 0.0)  # all clients are nearest to the last
    ]
    strategy = IFCA(IFCAOptions(clusters=3))
    strategy.load_state_dict(
        {CLUSTER.format(j) + name: a for j in (1, 2) for name, a in models[j].items()}
    )
    arrays, *_ = played(strategy, 3, start=models[0])
    assert_arrays(arrays, models[0])
    assert_arrays(strategy.others[1], models[1])
    for name, array in models[2].items():
        assert not np.array_equal(strategy.others[2][name], array)


@pytest.mark.slow
@pytest.mark.parametrize("options", [IFCAOptions(3), IFCAOptions(start="random")])
def test_it_repeats_resumes_and_survives_failures(options):
    exams.every(exams.pair("ifca", options), Blobs((60, 25, 40, 33, 30)))


def test_too_few_replies_are_grouped_later(caplog):
    strategy = IFCA(IFCAOptions(clusters=3))
    played(strategy, 4, a_round=2)
    assert not strategy.others
    assert "cannot be grouped into ifca.clusters = 3" in caplog.text
    strategy = IFCA()
    arrays, *_ = played(strategy, 25, a_round=3)
    assert slopes_of(arrays, strategy) == pytest.approx(sorted(SLOPES), abs=0.2)


def test_starts_are_farthest_from_the_mean_and_then_from_each_other():
    """Mean 5.4: 14 is the farthest, then 0, then 10, 4 away from 14, then 2."""
    assert farthest_first(np.array([[10.0], [0.0], [1.0], [2.0], [14.0]]), 4) == [4, 1, 0, 3]


def test_groups_follow_their_means_and_not_their_starts():
    """0 and 9 start, and 4 is nearer to 0; but the means are 2 and 5.87 then (the
    medians 2 and 6.1), and 4 is nearer to the second.
    """
    points = np.array([[0.0], [4.0], *[[4.6]] * 3, *[[6.1]] * 3, [9.0]])
    assert (farthest_first(points, 2), grouped(points, 2).tolist()) == ([0, 8], [0, *[1] * 8])


def test_every_group_has_a_point_even_of_equal_ones():
    assert sorted(set(grouped(np.zeros((5, 2)), 3).tolist())) == [0, 1, 2]
    refused(lambda: grouped(np.zeros((2, 2)), 3), "3 groups of 2 points")
