"""Tasks with a constraint: what clients hold adds up to the problem, known optima, bad
input, short runs of every one.
"""

import re

import numpy as np
import pandas as pd
import pytest

from fedapps.algorithms.frank_wolfe.objectives import QuadraticAssignment
from fedapps.errors import UserError
from fedapps.runs.assembly import build_task
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.tasks.convex import chr12a
from tests.helpers import assert_arrays, refused, run_inline

TASKS = ("lasso", "sparse-logistic", "matrix-completion", "qap", "constrained-classification")


def task_of(name, **settings):
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return build_task(read_settings({"method": "fedfw", "task": name, **given}))


def whole(task, x, n):
    """Return value and gradient of sum_i f_i."""
    problems = [task.problem(k, n) for k in range(n)]
    total = np.zeros(task.domain.shape)
    for gradient in (p.gradient(x) for p in problems):
        if hasattr(gradient, "add_to"):
            gradient.add_to(total, 1.0)
        else:
            total += gradient
    return sum(p.value(x) for p in problems), total


@pytest.mark.parametrize("name", TASKS)
def test_gradients_fit_values_and_starts_lie_in_the_domain(name):
    task = task_of(name, data__partition="iid")
    start = task.domain.join(list(task.initial_arrays().values()))
    assert task.domain.contains(start)
    rng = np.random.default_rng(0)
    x = np.asarray(start, float) + 0.01 * rng.normal(size=start.shape)
    direction = rng.normal(size=start.shape)
    direction /= np.linalg.norm(direction)
    slope = (
        whole(task, x + 1e-3 * direction, 6)[0] - whole(task, x - 1e-3 * direction, 6)[0]
    ) / 2e-3
    assert slope == pytest.approx(np.vdot(whole(task, x, 6)[1], direction), rel=2e-3, abs=1e-3)


def test_the_clients_of_lasso_share_one_problem_whose_optimum_is_0():
    task = task_of("lasso")
    assert (task.a.shape, (task.solution != 0).sum()) == ((200, 400), 20)
    assert task.domain.radius == pytest.approx(np.abs(task.solution).sum())
    x = np.random.default_rng(1).normal(size=400)
    for n in (1, 7, 10):
        value, gradient = whole(task, x, n)
        assert value == pytest.approx(((task.a @ x - task.b) ** 2).sum())
        np.testing.assert_allclose(gradient, 2 * task.a.T @ (task.a @ x - task.b))
    assert whole(task, task.solution, 10)[0] == pytest.approx(0, abs=1e-20)
    measured = task.measure(task.solution, {"objective": 0.0}, 10)
    assert measured == {"non-zeros": 20, "support-found": 1, "solution-distance": 0, "residual": 0}
    assert "residual" not in task_of("lasso", lasso__radius=1.0).measure(
        task.solution, {"objective": 0.0}, 10
    )


def test_the_parts_of_a_quadratic_assignment_sum_to_its_cost():
    task = task_of("qap")
    x = np.random.default_rng(1).dirichlet(np.ones(12), 12)
    a, b = chr12a()
    for n in (1, 6, 72):
        assert whole(task, x, n)[0] == pytest.approx(np.trace(a @ x @ b.T @ x.T))
    best = np.zeros((12, 12))
    # published with the instance
    best[np.arange(12), np.array([7, 5, 12, 2, 1, 3, 9, 11, 10, 6, 8, 4]) - 1] = 1
    assert QuadraticAssignment(a, b).value(best) == 9552
    rounded = [task.problem(k, 72).score(0.9 * best + 0.1 / 12) for k in range(72)]
    assert sum(score["rounded-loss"] for score in rounded) == 9552
    means = {"objective": 2.0, "rounded-loss": 3.0}
    assert task.measure(x, means, 72) == {"relaxed-cost": 144, "rounded-cost": 216}


def test_observations_are_dealt_once_and_test_ones_never_trained_on():
    for source in ("generated", "digits"):
        task = task_of("matrix-completion", data__source=source)
        problems = [task.problem(k, 7) for k in range(7)]
        train = np.concatenate([p.gradient(np.zeros(task.domain.shape)).indices for p in problems])
        assert len(np.unique(train)) == len(train) == round(0.8 * len(task.observed.values))
        everything = task.observed.rows * task.domain.shape[1] + task.observed.columns
        assert len(np.unique(everything)) == len(everything)
    assert task.domain.shape == (1797, 64)
    for center, radius in (
        ("none", task.observed.norm),
        ("bias", 0.7 * np.sqrt(round(0.8 * len(task.observed.values)))),
    ):
        task = task_of(
            "matrix-completion",
            data__source="digits",
            matrix_completion__center=center,
        )
        assert task.domain.radius == pytest.approx(radius)


SMALL = {
    "data__source": "ratings",
    "matrix_completion__rows": 60,
    "matrix_completion__columns": 50,
}


def test_a_client_may_be_a_user_or_several():
    """Every observation has one client, all of a user's the same; the test observations
    are those of even dealing; errors are pooled, not averaged over unequal clients.
    """

    def dealt(how, **more):
        given = {**SMALL, "matrix_completion__observations": 900, **more}
        return task_of("matrix-completion", **given, matrix_completion__partition=how)

    def observations(clients, part):
        return sorted(one for c in clients for one in zip(*getattr(c, part), strict=True))

    def error(task, clients):
        x = np.zeros(task.domain.shape)
        scores = [client.score(x) for client in clients]
        means = {name: np.mean([score[name] for score in scores]) for name in scores[0]}
        return task.measure(x + np.eye(*x.shape), means, 7)["rmse"]

    even, task, other_seed = dealt("iid"), dealt("users"), dealt("users", seed=1)
    task.check(7)
    evenly, clients = ([t.problem(k, 7) for k in range(7)] for t in (even, task))
    users = [{*client.train.rows, *client.test.rows} for client in clients]
    assert sum(map(len, users)) == len(set.union(*users))
    assert max(map(len, users)) - min(map(len, users)) <= 1
    assert observations(evenly, "train") == observations(clients, "train")
    assert observations(evenly, "test") == observations(clients, "test")
    # clients clip to their range
    assert error(even, evenly) == pytest.approx(error(task, clients), rel=1e-2)
    assert {*other_seed.problem(0, 7).train.rows} != {*clients[0].train.rows}
    refused(
        lambda: task.check(61), r"num-clients = 61, but .* has (60|5\d) users to deal", UserError
    )


def test_a_user_without_training_observations_is_reported():
    few = {"matrix_completion__partition": "users", "matrix_completion__observations": 100}
    task = task_of("matrix-completion", **SMALL, **few)
    users = len(np.unique(task.observed.rows))
    refused(
        lambda: task.check(users), rf"client \d+ of {users} has no training observations", UserError
    )


def test_generated_ratings_look_like_those_of_films():
    """Few users and items have most of the ratings; a mean leaves 1.07, biases 0.92 of
    them, as in the largest public tables.
    """
    o = task_of("matrix-completion", data__source="ratings").observed
    assert (o.shape, len(o.values), set(o.values)) == ((943, 1682), 100_000, {1, 2, 3, 4, 5})
    for at, size in ((o.rows, 943), (o.columns, 1682)):
        assert np.sort(np.bincount(at, minlength=size))[::-1][: size // 10].sum() > 0.25 * 100_000
    assert 1.0 < o.values.std() < 1.15


def test_generated_ratings_do_not_depend_on_the_processor(monkeypatch):
    """The order of a partition does: vectors of another width leave another one."""
    numbers = {**SMALL, "matrix_completion__observations": 500}
    one = task_of("matrix-completion", **numbers).observed
    partition = np.argpartition
    monkeypatch.setattr(
        np,
        "argpartition",
        lambda keys, k: np.r_[partition(keys, k)[:k][::-1], partition(keys, k)[k:]],
    )
    other = task_of("matrix-completion", **numbers).observed
    assert_arrays((one.rows, one.values), (other.rows, other.values))


def test_large_matrices_are_single_precision():
    task = task_of(
        "matrix-completion", matrix_completion__rows=943, matrix_completion__columns=1682
    )
    assert task.initial_arrays()["x"].dtype == np.float32


def test_samples_of_sparse_logistic_are_dealt_once():
    task = task_of("sparse-logistic")
    assert sorted([*task.train, *task.test]) == list(range(1797))
    assert sum(task.problem(k, 10).num_examples for k in range(10)) == len(task.train) == 1438
    assert task.domain.shape == (64, 10)


# --- ratings --------------------------------------------------------------------------


def ratings(folder, **columns):
    rng = np.random.default_rng(0)
    places = rng.permutation(30 * 20)[:300]
    table = {"user_id": places // 20 + 1, "movie_id": places % 20 + 1}
    table["rating"] = rng.integers(1, 6, 300)
    folder.mkdir()
    pd.DataFrame(table | columns).to_csv(folder / "train.csv", index=False)
    return str(folder)


def test_ratings_of_a_folder(tmp_path):
    source = ratings(tmp_path / "r")
    task = task_of("matrix-completion", data__source=source, matrix_completion__radius=50.0)
    assert task.domain.shape == (30, 20)
    assert sorted(np.unique(task.observed.values)) == [1, 2, 3, 4, 5]
    assert sum(task.problem(k, 4).num_examples for k in range(4)) == 240


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (
            {"user_id": 1, "movie_id": 1},
            {},
            "299 ratings repeat a pair of user and item, the first one numbers 0 and 0",
        ),
        ({}, {"rows": 20}, "matrix-completion.rows = 20, but 'user_id' goes up to 30: set it to 0"),
        ({}, {"columns": 10}, "matrix-completion.columns = 10, but 'movie_id' goes up to 20"),
        (
            {"user_id": -1},
            {},
            "matrix-completion.user = 'user_id': holds other values than whole numbers",
        ),
        (
            {"movie_id": "a"},
            {},
            "matrix-completion.item = 'movie_id': holds other values than whole numbers",
        ),
        (
            {"rating": float("nan")},
            {},
            "matrix-completion.rating = 'rating': holds other values than finite numbers",
        ),
        ({}, {"user": "reader"}, "matrix-completion.user = 'reader'"),
        (
            {},
            {"radius": 0.0, "center": "none"},
            "matrix-completion.radius = 0: the norm of a table of ratings is not known",
        ),
        ({}, {"center": "median"}, "matrix-completion.center = 'median'"),
        ({}, {"radius": -1.0}, "matrix-completion.radius = -1"),
    ],
)
def test_bad_ratings_say_in_one_line_what_is_wrong(columns, settings, message, tmp_path):
    given = {"data__source": ratings(tmp_path / "r", **columns)}
    given |= {
        f"matrix_completion__{key}": one for key, one in ({"radius": 50.0} | settings).items()
    }
    refused(lambda: task_of("matrix-completion", **given).domain, re.escape(message), UserError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "lasso", "lasso.radius": -1}, "lasso.radius = -1"),
        (
            {"task": "lasso", "lasso.sparsity": 500},
            "lasso.sparsity = 500: choose a value in [1, 400]",
        ),
        (
            {"task": "lasso", "num-clients": 201},
            "num-clients = 201, but task 'lasso' has 200 rows to deal: choose 1..200",
        ),
        ({"task": "sparse-logistic", "sparse-logistic.radius": 0}, "sparse-logistic.radius = 0"),
        (
            {"task": "qap", "data.source": "/no/such.dat"},
            "data.source = '/no/such.dat': cannot be read",
        ),
        (
            {"task": "constrained-classification", "constraint.ball": "l3"},
            "constraint.ball = 'l3'",
        ),
        ({"fedfw.schedule": "convexe"}, "fedfw.schedule = 'convexe': did you mean 'convex'"),
        (
            {"method": "projected-fedavg", "task": "qap"},
            "Birkhoff has no projection: choose method = 'fedfw' or 'fedfw-plus'",
        ),
        (
            {"task": "digits"},
            "task = 'digits': this method runs on lasso, sparse-logistic, matrix-completion, qap",
        ),
    ],
)
def test_mistakes_in_the_settings(settings, message):
    refused(
        lambda: assemble(with_defaults({"method": "fedfw", **settings})),
        re.escape(message),
        UserError,
    )


@pytest.mark.parametrize("text", ["2\n1 2 3 4 5 6 7", "1 2\n3 4", "2\n1 2 3 4 5 6 7 x", ""])
def test_a_file_that_is_no_qap(text, tmp_path):
    (tmp_path / "a.dat").write_text(text)
    refused(
        lambda: task_of("qap", data__source=str(tmp_path / "a.dat")).check(1),
        r"data\.source = ",
        UserError,
    )


# --- runs -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_method_on_every_task(name, tmp_path):
    for method in ("fedfw", "fedfw-plus", "naive-fw", "projected-fedavg"):
        if (method, name) == ("projected-fedavg", "qap"):
            continue
        job = {"method": method, "task": name, "num-clients": 6, "num-rounds": 6}
        summary = run_inline(tmp_path / method, **job, **{"evaluate-every": 3})
        assert summary["failures"] == 0
        assert {"objective", "gap", "consensus", "distance-mean", "loss-mean"} <= set(summary)
        assert summary["objective"] == pytest.approx(summary["loss-mean"])
        assert summary["gap"] >= 0


def test_a_gap_ends_a_run_from_the_command_line(tmp_path):
    job = {"fedfw.tolerance": 1500, "evaluate-every": 5}
    summary = run_inline(tmp_path / "r", "method=fedfw", "task=lasso", **job)
    assert summary["status"] == "completed"
    assert summary["rounds-completed"] < summary["num-rounds"]
    assert summary["gap"] <= 1500
