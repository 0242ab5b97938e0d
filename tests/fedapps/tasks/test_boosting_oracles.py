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
from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.settings.reading import read_settings
from fedapps.strategies import FFGB, FFGBOptions
from fedapps.tasks.boosting_oracles import load_function, oracle_of, predictor
from fedapps.toml_text import read_toml
from tests.helpers import assert_arrays, refused


def table(n=200, features=5, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    x[:, 0] = np.round(x[:, 0])  # many equal values
    return x, np.stack([x[:, 0] * x[:, 1], np.sin(3 * x[:, 2]), rng.normal(size=n)], 1)[:, :outputs]


def side_by_side(learners):
    return {
        name: torch.tensor(np.stack([learner[name] for learner in learners]))
        for name in learners[0]
    }


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
    strategy = FFGB(FFGBOptions(learner="trees"))
    assert (strategy.etas(0), FFGB().etas(0)) == ([1.0], [5.0])


def test_trees_on_arrays_are_trees_on_tensors():
    x, y = table()
    oracle, rng = TreeOracle(3, 3, 0.5), np.random.default_rng(0)
    one, other = (
        oracle.fit(x, Target(y), rng),
        oracle.fit(torch.tensor(x), Target(torch.tensor(y)), rng),
    )
    assert_arrays(one, other)
    stacked = {name: np.stack([array, array]) for name, array in one.items()}
    found = oracle.predict(stacked, x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(
        found,
        oracle.predict({name: torch.tensor(a) for name, a in stacked.items()}, torch.tensor(x)),
    )


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
        n_estimators=8,
        max_depth=3,
        learning_rate=0.4,
        init="zero",
        criterion="squared_error",
        random_state=0,
    ).fit(x, y[:, 0])
    oracle = TreeOracle(trees=8, depth=3, rate=0.4)
    learner = oracle.fit(torch.tensor(x), Target(torch.tensor(y)), np.random.default_rng(0))
    found = oracle.predict(side_by_side([learner, learner]), torch.tensor(x))
    np.testing.assert_allclose(found[0, :, 0], reference.predict(x), atol=1e-5)
    assert torch.equal(found[0], found[1])
    assert learner["value"].shape == (8, 8, 1)


def job(*settings, method="ffgb", task="digits"):
    config = dict(setting.split("=") for setting in settings)
    return read_settings({"method": method, "task": task, "num-clients": 4, **config})


@pytest.mark.parametrize(
    ("method", "task", "settings", "kind", "oracle"),
    [
        ("ffgb", "digits", [], NetOracle, "l2"),
        ("ffgb-c", "digits", [], NetOracle, "linf"),
        ("ffgb-l", "digits", [], NetOracle, "lipschitz"),
        ("ffgb-l", "digits", ["ffgb.oracle=l2"], NetOracle, "l2"),
        ("ffgb", "tabular", [], TreeOracle, None),
        ("ffgb", "tabular", ["ffgb.learner=net"], NetOracle, "l2"),
        ("ffgb", "digits", ["ffgb.learner=ridge"], RidgeOracle, None),
    ],
)
def test_the_oracle_that_the_options_name(method, task, settings, kind, oracle):
    chosen = job(*settings, method=method, task=task)
    built = oracle_of(build_task(chosen), chosen.options, method)
    assert type(built) is kind
    assert getattr(getattr(built, "options", None), "kind", None) == oracle


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            "ffgb",
            ["ffgb.oracle=lipschitz"],
            "oracle = 'lipschitz': needs the target as a function, which ffgb has not",
        ),
        (
            "ffgb-l",
            ["ffgb.oracle=linf", "ffgb.learner=trees"],
            "only nets have it, choose oracle = 'l2'",
        ),
    ],
)
def test_oracles_that_do_not_fit(method, settings, message):
    chosen = job(*settings, method=method)
    refused(lambda: build_strategy(chosen, build_task(chosen)), message)


def test_rounds_at_once_need_one_round(tmp_path, capsys):
    arguments = [
        "run",
        "--engine",
        "inline",
        "method=ffgb-l",
        "ffgb.at-once=9",
        "ffgb.learner=ridge",
        "--nodes",
        "4",
        "clients-per-round=0",
    ]
    assert main([*arguments, "num-rounds=5", "--out", str(tmp_path / "a")]) == 2
    assert (
        "ffgb.at-once = 9, num-rounds = 5: at-once takes one round: set num-rounds = 1"
        in capsys.readouterr().err
    )
    assert main([*arguments, "num-rounds=1", "--out", str(tmp_path / "b")]) == 0


@pytest.mark.parametrize("method", ["ffgb", "ffgb-c"])
def test_a_learnt_function_comes_back_from_its_folder(method, tmp_path):
    out = tmp_path / "run"
    assert (
        main(
            [
                "run",
                "--engine",
                "inline",
                f"method={method}",
                "task=tabular",
                "num-rounds=4",
                "--nodes",
                "5",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    settings = read_settings(read_toml(out / "settings.toml"))
    task, function = build_task(settings), load_function(out)
    assert len(function) == 20
    f = predictor(task, function, settings.options, method)
    found = {}
    for client in range(5):
        test = task.client_data(client, 5).test
        found[client] = float(((f(test.x)[:, 0] > 0) == (test.y == 1)).float().mean())
    rows = [line.split(",") for line in (out / "clients.csv").read_text().splitlines()]
    column = rows[0].index("accuracy")
    assert found == pytest.approx({int(row[0]): float(row[column]) for row in rows[1:]})


def test_a_folder_without_a_function(tmp_path):
    refused(lambda: load_function(tmp_path), "holds no boosted function", UserError)
