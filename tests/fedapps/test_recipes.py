"""The recipes in ``examples/recipes`` run as they are, and learn."""

import importlib.util

import numpy as np
import pytest

from fedapps.engines.inline import InlineGrid
from fedapps.strategies.base.flower_private import identify_process
from tests.helpers import ROOT

FOLDER = ROOT / "examples" / "recipes"
LEARNT = {
    "fedfw": lambda x: abs(x[3] - 1) < 0.1 and abs(x[7] + 1) < 0.1,
    "fedboost": lambda alpha: alpha[1] < 0.05 and abs(alpha[0] - alpha[2]) < 0.1,
    "ffgb": lambda accuracy: accuracy > 0.9,
    "fedevg": lambda accuracy: accuracy > 0.9,
    "superfed": lambda accuracy: accuracy > 0.8,
    "aaggff": lambda w: w[0] > 0.3,  # FedAvg: 0.25
    "head_only": lambda accuracy: accuracy > 0.9,
}


def test_every_recipe_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(LEARNT)


@pytest.mark.parametrize("name", LEARNT)
def test_the_recipe_learns(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", FOLDER / f"{name}.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    identify_process(1)
    found = recipe.main(InlineGrid(recipe.app, 4), None)
    assert LEARNT[name](found), found
    assert np.all(np.isfinite(found))
