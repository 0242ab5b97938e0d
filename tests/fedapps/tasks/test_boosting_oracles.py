"""Weak learners of a run: trees against scikit-learn's own, the oracle that options
name, functions that come back from a folder.
"""

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor

from fedapps.algorithms.boosting.trees import TreeOracle, fit_tree, walk
from fedapps.algorithms.boosting.weak_learners import NetOracle, RidgeOracle, Target
from fedapps.errors import UserError
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.strategies import FFGB, FFGBOptions
from fedapps.tasks.boosting_oracles import load_function, oracle_of, predictor
from fedapps.toml_text import read_toml
from tests.helpers import assert_arrays, clients_of, refused, run_inline


def table(n=200, features=5, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    x[:, 0] = np.round(x[:, 0])  # many equal values
    return x, np.stack([x[:, 0] * x[:, 1], np.sin(3 * x[:, 2]), rng.normal(size=n)], 1)[:, :outputs]


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_tree_predicts_what_scikit_learns_does(depth, outputs):
    # nodes of many samples: no two splits of them are equally good
    x, y = table(n=2000, outputs=outputs)
    feature, threshold, value = fit_tree(x, y, depth)
    assert feature.shape == threshold.shape == (2**depth - 1,)
    reference = DecisionTreeRegressor(max_depth=depth, random_state=0).fit(x, y)
    unseen = np.concatenate([x, table(seed=1)[0], (x[:1] + x[1:]) / 2])
    found = walk(*(a[None] for a in (feature, threshold, value)), unseen)
    np.testing.assert_allclose(
        found[0], reference.predict(unseen).reshape(len(unseen), -1), atol=1e-12
    )


@pytest.mark.parametrize("least", [7, 60])
def test_no_leaf_is_smaller_than_allowed_and_splits_are_the_best_of_those_left(least):
    x, y = table(n=2000)
    feature, threshold, value = fit_tree(x, y, 5, least)
    found = walk(*(a[None] for a in (feature, threshold, value)), x)[0]
    reference = DecisionTreeRegressor(max_depth=5, min_samples_leaf=least, random_state=0).fit(x, y)
    np.testing.assert_allclose(found, reference.predict(x), atol=1e-12)
    assert least <= np.unique(found, axis=0, return_counts=True)[1].min() < 2 * least


def test_trees_of_a_run_have_leaves_that_expose_nobody_and_short_steps_unless_told_otherwise():
    for settings, least, first in (
        ({}, 5, 1.0),
        ({"ffgb.learner": "trees"}, 5, 1.0),
        ({"ffgb.learner": "net"}, None, 5.0),  # eta-0 / 2
        ({"ffgb.learner": "ridge", "ffgb.eta-0": 100.0}, None, 10.0),
        ({"ffgb.eta-max": 3.0, "ffgb.min-leaf": 1}, 1, 3.0),
    ):
        chosen = read_settings({"method": "ffgb", "task": "tabular", **settings})
        task = build_task(chosen)
        assert build_strategy(chosen, task).etas(0) == [first], settings
        assert getattr(oracle_of(task, chosen.options, "ffgb"), "min_leaf", None) == least
    assert (FFGB(FFGBOptions(learner="trees")).etas(0), FFGB().etas(0)) == ([1.0], [5.0])


def test_trees_on_arrays_are_trees_on_tensors():
    x, y = table()
    oracle, rng = TreeOracle(3, 3, 0.5), np.random.default_rng(0)
    one = oracle.fit(x, Target(y), rng)
    assert_arrays(one, oracle.fit(torch.tensor(x), Target(torch.tensor(y)), rng))
    stacked = {name: np.stack([array, array]) for name, array in one.items()}
    tensors = {name: torch.tensor(array) for name, array in stacked.items()}
    found = oracle.predict(stacked, x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, oracle.predict(tensors, torch.tensor(x)))


def test_a_tree_that_stops_early_fills_its_layout():
    x, y = np.array([[0.0], [1.0]], np.float32), np.array([[2.0], [5.0]])
    trees = [fit_tree(x, y, 4), fit_tree(x, 0 * y + 3, 4)]
    for tree, wanted in zip(trees, ([2.0, 5.0], [3.0, 3.0]), strict=True):
        found = walk(*(torch.tensor(a)[None] for a in tree), torch.tensor([[-9.0], [9.0]]))
        np.testing.assert_allclose(found[0, :, 0], wanted)
        assert all(np.abs(a).max() < 100 for a in tree)


def test_boosted_trees_are_scikit_learns_gradient_boosting():
    x, y = table(outputs=1)
    reference = GradientBoostingRegressor(
        n_estimators=8, max_depth=3, learning_rate=0.4, init="zero", random_state=0
    ).fit(x, y[:, 0])
    oracle = TreeOracle(trees=8, depth=3, rate=0.4)
    learner = oracle.fit(torch.tensor(x), Target(torch.tensor(y)), np.random.default_rng(0))
    two = {name: torch.tensor(np.stack([array, array])) for name, array in learner.items()}
    found = oracle.predict(two, torch.tensor(x))
    np.testing.assert_allclose(found[0, :, 0], reference.predict(x), atol=1e-5)
    assert torch.equal(found[0], found[1])
    assert learner["value"].shape == (8, 8, 1)


def job(method, task="digits", **settings):
    given = {f"ffgb.{key}": value for key, value in settings.items()}
    return read_settings({"method": method, "task": task, "num-clients": 4, **given})


@pytest.mark.parametrize(
    ("method", "task", "settings", "kind", "oracle"),
    [
        ("ffgb", "digits", {}, NetOracle, "l2"),
        ("ffgb-c", "digits", {}, NetOracle, "linf"),
        ("ffgb-l", "digits", {}, NetOracle, "lipschitz"),
        ("ffgb-l", "digits", {"oracle": "l2"}, NetOracle, "l2"),
        ("ffgb", "tabular", {}, TreeOracle, None),
        ("ffgb", "tabular", {"learner": "net"}, NetOracle, "l2"),
        ("ffgb", "digits", {"learner": "ridge"}, RidgeOracle, None),
    ],
)
def test_the_oracle_that_the_options_name(method, task, settings, kind, oracle):
    chosen = job(method, task, **settings)
    built = oracle_of(build_task(chosen), chosen.options, method)
    assert type(built) is kind
    assert getattr(getattr(built, "options", None), "kind", None) == oracle


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            "ffgb",
            {"oracle": "lipschitz"},
            "oracle = 'lipschitz': needs the target as a function, which ffgb has not",
        ),
        (
            "ffgb-l",
            {"oracle": "linf", "learner": "trees"},
            "only nets have it, choose oracle = 'l2'",
        ),
    ],
)
def test_oracles_that_do_not_fit(method, settings, message):
    chosen = job(method, **settings)
    refused(lambda: build_strategy(chosen, build_task(chosen)), message)


def test_rounds_at_once_need_one_round(tmp_path):
    job = {"method": "ffgb-l", "ffgb.at-once": 9, "ffgb.learner": "ridge", "num-clients": 4}
    refused(
        lambda: assemble(with_defaults({**job, "num-rounds": 5})),
        "ffgb.at-once = 9, num-rounds = 5: at-once takes one round: set num-rounds = 1",
        UserError,
    )
    run_inline(tmp_path / "b", **job, **{"num-rounds": 1, "clients-per-round": 0})


@pytest.mark.parametrize("method", ["ffgb", "ffgb-c"])
def test_a_learnt_function_comes_back_from_its_folder(method, tmp_path):
    out = tmp_path / "run"
    run_inline(out, f"method={method}", "task=tabular", "num-rounds=4", "num-clients=5")
    settings = read_settings(read_toml(out / "settings.toml"))
    task, function = build_task(settings), load_function(out)
    assert len(function) == 20
    f = predictor(task, function, settings.options, method)
    for row in clients_of(out):
        test = task.client_data(int(row["client"]), 5).test
        accuracy = float(((f(test.x)[:, 0] > 0) == (test.y == 1)).float().mean())
        assert accuracy == pytest.approx(float(row["accuracy"]))


def test_a_folder_without_a_function(tmp_path):
    refused(lambda: load_function(tmp_path), "holds no boosted function", UserError)
