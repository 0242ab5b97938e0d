"""Matrix completion through real messages: centring before the first step with any
participation, and results compared with biases.
"""

import numpy as np
import pytest

from fedapps.algorithms.frank_wolfe.centering import Centering, Table
from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.clients.dfw_trace import DFWTraceClient
from fedapps.clients.families.completion import CompletionProblem
from fedapps.clients.fedfw import FedFWClient
from fedapps.clients.projected import ProjectedClient
from fedapps.data.source import Source
from fedapps.strategies.dfw_trace import DFWTrace
from fedapps.strategies.fedfw import FedFW, FedFWOptions
from fedapps.strategies.projected_fedavg import ProjectedFedAvg
from fedapps.tasks.observations import observations
from fedapps.tasks.options import MatrixCompletionOptions
from tests.constrained import World, stepping
from tests.helpers import arrays_of, refused

RATINGS = observations(
    MatrixCompletionOptions(rows=120, columns=150, observations=4000), Source("ratings"), 0
)
BALL = NuclearBall(RATINGS.shape, 40.0)


def parts(n, whole=RATINGS):
    cut = len(whole.values) // 5

    def deal(at):
        return [
            Table(whole.rows[k], whole.columns[k], whole.values[k]) for k in np.array_split(at, n)
        ]

    order = np.arange(len(whole.values))
    tables = zip(deal(order[cut:]), deal(order[:cut]), strict=True)
    return [CompletionProblem(train, test, whole.shape) for train, test in tables]


def root(x, means, n):
    return {"test-rmse": float(np.sqrt(means["test-squared-error"] / means["test-observations"]))}


def run(strategy, kind, rounds, n=5, problems=None, fail=None, **options):
    world = World(BALL, problems or parts(n), kind, fail)
    _, result = world.run(strategy, rounds, **options)
    return result, world


def build(name, **options):
    made = {"measure": root, "preparation": Centering(RATINGS.shape, options.pop("center", "bias"))}
    if name == "dfw-trace":
        return DFWTrace(BALL, **made), DFWTraceClient
    if name == "projected":
        return ProjectedFedAvg(BALL, learning_rate=0.5, **made), ProjectedClient
    return FedFW(
        BALL, FedFWOptions(**options), name, lambda_0=0.0, curvature=2.0, **made
    ), FedFWClient


@pytest.mark.parametrize("name", ["fedfw", "fedfw-plus", "projected", "dfw-trace"])
def test_the_constants_follow_the_point_and_determine_the_clients_scores(name):
    """The test error that clients report is that of ``rows + columns + scale x`` of the
    final model, clipped.
    """
    strategy, kind = build(name)
    result, world = run(strategy, kind, 9, evaluate_every=3)
    model = arrays_of(result)
    assert list(model) == ["x0", "rows", "columns", "scale"]
    guess = model["rows"][:, None] + model["columns"] + model["scale"] * model["x0"]
    cut = len(RATINGS.values) // 5
    error = np.clip(guess[RATINGS.rows[:cut], RATINGS.columns[:cut]], 1, 5) - RATINGS.values[:cut]
    last = result.evaluate_metrics_clientapp[9]
    assert last["test-rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    assert 3 not in result.evaluate_metrics_clientapp  # there was nothing to evaluate yet
    assert last["test-rmse-of-biases"] < last["test-rmse-of-mean"] < last["test-rmse-of-zero"]
    assert [now.trained.bytes_up > 0 for now in world.rounds] == [True] * 9


def test_without_centring_the_baselines_are_reported_too():
    strategy, kind = build("fedfw", center="none", lambda_0=0.1)
    result, _ = run(strategy, kind, 6)
    assert list(arrays_of(result)) == ["x0"]
    assert result.evaluate_metrics_clientapp[6]["test-rmse-of-biases"] < 1.1


@pytest.mark.parametrize("name", ["fedfw-plus", "dfw-trace"])
def test_all_clients_are_asked_although_rounds_are_sampled(name):
    plain, _ = run(*build(name), 12)
    sampled, _ = run(*build(name), 12, clients_per_round=2)
    for key in ("rows", "columns", "scale"):
        np.testing.assert_array_equal(arrays_of(sampled)[key], arrays_of(plain)[key])


def test_a_client_that_does_not_answer_is_missing_from_the_sums_only():
    plain, _ = run(*build("dfw-trace"), 12)
    some, _ = run(*build("dfw-trace"), 12, fail=lambda client, t: t == 2 and client == 1)
    # no client answered: the question is asked again
    away, _ = run(*build("dfw-trace"), 12, fail=lambda client, t: t == 2)
    assert 0 < np.abs(arrays_of(some)["columns"] - arrays_of(plain)["columns"]).max() < 0.5
    np.testing.assert_array_equal(arrays_of(away)["columns"], arrays_of(plain)["columns"])


def test_sums_of_another_shape_skip_only_their_client(caplog):
    class Odd(DFWTraceClient):
        def fit(self, parameters, config):
            arrays, n, metrics = super().fit(parameters, config)
            odd = config.get("phase") == "prepare" and self.client_id == 2
            return ([array[:-1] for array in arrays] if odd else arrays), n, metrics

    result, _ = run(build("dfw-trace")[0], Odd, 8)
    assert "its sums are not float64 arrays of shapes" in caplog.text
    assert "scale" in arrays_of(result)


def test_the_penalty_ends_at_the_curvature_over_n():
    seen = []

    def note(client, config, *reply):
        seen.append((config["lambdas"][-1], config["etas"][0], config["server-round"]))
        return reply

    for options in ({}, {"local_steps": 3}, {"schedule": "non-convex"}, {"offset": 6}):
        seen.clear()
        run(build("fedfw", **options)[0], stepping(note), 10)
        penalty, _, last = seen[-1]
        assert last == 10
        assert penalty == pytest.approx(2.0 / 5)
        if options.get("schedule") is None:
            assert seen[0][1] == 2 / (options.get("offset", 0) + 2)


def test_dfw_trace_is_far_below_the_biases_and_near_central_frank_wolfe():
    many, _ = run(*build("dfw-trace"), 84, n=20, evaluate_every=0)
    central, _ = run(*build("fedfw", lambda_0=1.0, offset=2), 60, n=1, evaluate_every=0)
    measures = many.evaluate_metrics_clientapp[84]
    assert measures["test-rmse"] < measures["test-rmse-of-biases"] - 0.01
    assert measures["test-rmse"] < central.evaluate_metrics_clientapp[60]["test-rmse"] + 0.01


@pytest.mark.parametrize(
    "constants",
    [[np.zeros(3)], [np.zeros(120), np.zeros(150)], [np.zeros(150), np.zeros(120), np.ones(1)]],
)
def test_constants_of_another_shape_are_refused(constants):
    refused(lambda: parts(2)[0].given(constants), "rows, columns and a scale")
