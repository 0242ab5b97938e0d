"""Weak-learning oracles of a run, chosen by the options; scikit-learn's trees; loading and saving of learned functions.

A run stores the learned function as ``model.safetensors``: ``load_function(folder)`` reads it.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from algorithms.boosting.additive import Additive
from algorithms.boosting.additive_values import values_at
from algorithms.boosting.regression import FitOptions
from algorithms.boosting.trees import Tree, TreeOracle, full_tree
from algorithms.boosting.weak_learners import NetOptions, NetOracle, Oracle, RidgeOracle
from fedapps.errors import UserError
from fedapps.tasks.base import TorchTask
from fedapps.tasks.tabular import Tabular
from strategies.ffgb import FFGBOptions

# The oracle for which each method's convergence is proved.
PROVED = {"ffgb": "l2", "ffgb-c": "linf", "ffgb-l": "lipschitz"}


@lru_cache(maxsize=4)
def oracle_of(task: TorchTask, options: FFGBOptions, method: str) -> Oracle:
    """Return the weak-learning oracle of a run, cached per task and options."""
    learner = options.learner if options.learner != "auto" else "trees" if isinstance(task, Tabular) else "net"
    if learner == "trees":
        return TreeOracle(fit_tree, options.trees, options.depth, options.tree_rate)
    if learner == "ridge":
        return RidgeOracle(options.ridge)
    kind = PROVED[method] if options.oracle == "auto" else options.oracle
    fit = FitOptions(steps=options.fit_steps, learning_rate=options.fit_rate, batch_size=options.fit_batch, clip=0.0)
    return NetOracle(task.model_fn, NetOptions(kind, fit, options.sobolev))


def check_learner(options: FFGBOptions, method: str) -> None:
    """Raise ``ValueError`` for an oracle that the method or the kind of learner does not support."""
    if options.oracle == "lipschitz" and method != "ffgb-l":
        raise ValueError(f"oracle = 'lipschitz': needs the target as a function, which {method} has not: choose l2 or linf")
    if options.oracle in ("linf", "lipschitz") and options.learner in ("trees", "ridge"):
        raise ValueError(f"oracle = {options.oracle!r}, learner = {options.learner!r}: only nets have it, choose oracle = 'l2'")


def fit_tree(x: NDArray[np.float32], y: NDArray[np.float64], depth: int, rng: np.random.Generator) -> Tree:
    """Return a regression tree fitted by scikit-learn to x (n, features) and y (n, outputs), as arrays."""
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_depth=depth, random_state=int(rng.integers(2**31))).fit(x, y).tree_
    return full_tree(tree.children_left, tree.children_right, tree.feature, tree.threshold, tree.value[:, :, 0], depth)


# --- learned functions -----------------------------------------------------------------------------------------------


def load_function(folder: Path | str) -> Additive:
    """Return the function in a results folder's ``model.safetensors``, or in such a file. Raises ``UserError``."""
    path = Path(folder)
    path = path / "model.safetensors" if path.is_dir() else path
    try:
        return Additive.from_arrays(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(
            f"{path} holds no boosted function ({error}): name the results folder of a finished run of ffgb"
        ) from error


def save_function(function: Additive, path: Path | str) -> None:
    """Write a function (for example a pruned one) as a safetensors file."""
    save_file({name: np.asarray(array, order="C") for name, array in function.to_arrays().items()}, path)


def predictor(task: TorchTask, function: Additive, options: FFGBOptions, method: str) -> Callable[[Tensor], Tensor]:
    """Return x (n, ...) -> values (n, outputs) for a function learned on a task."""
    oracle = oracle_of(task, options, method)
    return lambda x: values_at(function, x, task.num_outputs, oracle.predict)
