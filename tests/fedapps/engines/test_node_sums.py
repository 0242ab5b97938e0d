"""Nodes that sum: the same bits with any number of workers, the average of FedAvg, and
fewer models on the way.
"""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedapps.clients import to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import answer_for_many
from fedapps.engines.node_grid import NodeGrid, summing
from fedapps.engines.node_sums import plan_of
from fedapps.errors import UserError
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import ClientGrid, FedAvg, UpdateBound, run_rounds
from tests.helpers import EchoClient, arrays_of, assert_arrays, outcome_of, rounds_of

JOB = {
    "num-clients": 16,
    "clients-per-round": 0,
    "num-rounds": 3,
    "evaluate-every": 3,
    "seed": 5,
    "train.local-epochs": 1,
}


def run(folder, nodes, **config):
    """Run with clients that share ``nodes`` (0: the inline engine); return the model's
    and the clients' files, and the rounds.
    """
    settings = with_defaults({**JOB, "out": str(folder), **config})
    inner = InlineGrid(app, nodes or settings.num_clients, settings.flat())
    execute(
        settings, NodeGrid(inner, settings.num_clients, inner.get_node_ids()) if nodes else inner
    )
    return outcome_of(folder)[1], rounds_of(folder)


@pytest.mark.parametrize("method", ["fedavg", "fedadam", "fedper"])
def test_one_worker_two_and_sixteen_give_the_same_bits(method, tmp_path):
    config = {"method": method, "node-sums": True}
    files, rows = run(tmp_path / "1", 1, **config)
    for nodes in (2, 16, 0):
        assert run(tmp_path / str(nodes), nodes, **config)[0] == files
    assert rows[-1]["failures"] == []


def test_the_sums_are_fedavgs_average_and_few_models_travel(tmp_path):
    _, summed = run(tmp_path / "summed", 2, **{"node-sums": True})
    _, single = run(tmp_path / "single", 2)
    from safetensors.numpy import load_file

    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("summed", "single"))
    assert_arrays(one, other, rtol=0.0001, atol=1e-06)
    for a, b in zip(summed, single, strict=True):
        # what clients with nodes of their own would have sent
        assert a["bytes-up"] == b["bytes-up"]
        assert a["train"].keys() == b["train"].keys()
        assert b["travelled-up"] > 16 / 2 * a["bytes-down"] / 16  # sixteen models
    model = summed[0]["bytes-down"] / 16
    assert summed[0]["travelled-up"] < 2 * 6 * model + 16 * 2000  # two sums of three 64-bit parts


class Weighty(EchoClient):
    """Has ``i + 1`` samples and moves the model by i; client 1 may misbehave."""

    def __init__(self, i, fault=None):
        super().__init__(float(i), i + 1)
        self.i, self.fault = i, fault

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        return (
            self.fault(arrays, n, metrics) if self.fault and self.i == 1 else (arrays, n, metrics)
        )


def boom(arrays, n, metrics):
    raise RuntimeError("no disk")


FAULTS = {
    "no disk": boom,
    "values that are not finite": lambda a, n, m: ([a[0] * np.nan, a[1]], n, m),
    "has shape (3,)": lambda a, n, m: ([np.zeros(3, np.float32), a[1]], n, m),
    "num-examples = 0": lambda a, n, m: (a, 0, m),
    "takes numbers below": lambda a, n, m: ([a[0] + np.float32(1e12), a[1]], n, m),
    "metric 'loss' is not finite": lambda a, n, m: (a, n, {"loss": float("nan")}),
}


def weighted(fault=None, weights="samples", nodes=2, bound=None):
    client_app = answer_for_many(
        to_client_app(lambda c: Weighty(c.node_config["partition-id"], fault))
    )
    strategy, rounds = FedAvg(weights=weights, fraction_evaluate=0.0), []
    grid = summing(InlineGrid(client_app, nodes), 4, lambda: plan_of(strategy, client_grid.rules))
    client_grid = ClientGrid(grid, bound=bound)
    start = ArrayRecord(
        {"w": Array(np.zeros(2, np.float32)), "count": Array(np.array(7, np.int64))}
    )
    result = run_rounds(
        strategy,
        client_grid,
        start,
        1,
        train_config=ConfigRecord(),
        callbacks=[rounds.append],
        log_result=False,
    )
    return arrays_of(result), rounds[0].trained


def test_the_mean_is_the_one_known_by_hand():
    arrays, trained = weighted()
    np.testing.assert_allclose(arrays["w"], (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10, rtol=1e-6)
    assert arrays["count"] == 9  # 7 + 2: integers stay integers
    assert arrays["count"].dtype == np.int64
    assert trained.clients == [0, 1, 2, 3]
    np.testing.assert_allclose(weighted(weights="uniform")[0]["w"], 1.5, rtol=1e-6)


@pytest.mark.parametrize("reason", FAULTS)
def test_a_client_with_a_fault_is_in_no_sum(reason):
    arrays, trained = weighted(FAULTS[reason])
    np.testing.assert_allclose(arrays["w"], (0 * 1 + 2 * 3 + 3 * 4) / 8, rtol=1e-6)
    assert trained.clients == [0, 2, 3]
    assert [f.client for f in trained.failures] == [1]
    assert reason in trained.failures[0].reason


def test_a_bound_on_updates_holds_in_the_node():
    # the norms are i times the root of 2
    arrays, trained = weighted(bound=UpdateBound(max_update_norm=3.0))
    np.testing.assert_allclose(arrays["w"], (0 * 1 + 1 * 2 + 2 * 3) / 6, rtol=1e-6)
    assert [f.client for f in trained.failures] == [3]


def test_a_model_in_a_sum_cannot_be_left_out_any_more():
    with pytest.raises(ValueError, match=r"client 1 is to be left out .* run without node-sums"):
        # a list where the others send a number
        weighted(lambda a, n, m: (a, n, {**m, "loss": [1.0, 2.0]}))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"method": "aaggff-d"}, "AAggFFD does not declare"),
        ({"method": "scaffold"}, "Scaffold does not declare"),
        ({"robust.rule": "median"}, "Robust does not declare"),
        ({"max-weight": 2.0}, "max-weight compares"),
    ],
)
def test_methods_that_need_more_than_a_sum_are_refused_in_one_line(config, reason):
    settings = with_defaults({**JOB, "node-sums": True, **config})
    with pytest.raises(UserError, match=reason) as error:
        build_strategy(settings, build_task(settings))
    assert "\n" not in str(error.value)
