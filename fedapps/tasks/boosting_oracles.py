"""Weak-learning oracles of a run, chosen by the options; loading and saving of learned
functions.

A run stores the learned function as ``model.safetensors``: ``load_function(folder)``
reads it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapps.algorithms.boosting.additive import Additive, values_at
from fedapps.algorithms.boosting.functional import Values
from fedapps.algorithms.boosting.oracle import Oracle
from fedapps.algorithms.boosting.trees import TreeOracle
from fedapps.algorithms.common.averaging import LIMIT
from fedapps.errors import UserError
from fedapps.strategies.ffgb import FFGBOptions
from fedapps.tasks.base import TorchTask
from fedapps.tasks.tabular import Tabular

# The oracle for which each method's convergence is proved.
PROVED = {"ffgb": "l2", "ffgb-c": "linf", "ffgb-l": "lipschitz"}


@lru_cache(maxsize=4)
def oracle_of(task: TorchTask, options: FFGBOptions, method: str) -> Oracle:
    """Return the weak-learning oracle of a run, cached per task and options."""
    learner = learner_of(task, options)
    if learner == "trees":
        return TreeOracle(options.trees, options.depth, min_leaf=options.min_leaf)
    # which need PyTorch
    from fedapps.algorithms.boosting.weak_learners import NetOptions, NetOracle, RidgeOracle

    if learner == "ridge":
        return RidgeOracle()
    kind = PROVED[method] if options.oracle == "auto" else options.oracle
    fit = replace(NetOptions().fit, steps=options.fit_steps)
    oracle = NetOracle(task.model_fn, NetOptions(kind, fit))
    for name, array in oracle.module.state_dict().items():
        if not bool((array.double().abs() <= LIMIT).all()):
            raise UserError(
                f"method = {method!r}: array {name!r} of the net holds numbers beyond {LIMIT:g}, "
                "which no function that clients send may: choose smaller ones, or another learner"
            )
    return oracle


def learner_of(task: TorchTask, options: FFGBOptions) -> str:
    """Return the kind of the learners; ``auto``: trees on tables, nets elsewhere."""
    return (
        options.learner
        if options.learner != "auto"
        else "trees"
        if isinstance(task, Tabular)
        else "net"
    )


def check_learner(options: FFGBOptions, method: str) -> None:
    """Raise ``ValueError`` for an oracle that the method or the kind of learner does
    not support.
    """
    if options.oracle == "lipschitz" and method != "ffgb-l":
        raise ValueError(
            f"oracle = 'lipschitz': needs the target as a function, which {method} has not: choose "
            "l2 or linf"
        )
    if options.oracle in ("linf", "lipschitz") and options.learner in ("trees", "ridge"):
        raise ValueError(
            f"oracle = {options.oracle!r}, learner = {options.learner!r}: only nets have it, "
            "choose oracle = 'l2'"
        )


# --- learned functions ----------------------------------------------------------------


def load_function(folder: Path | str) -> Additive:
    """Return the function in a results folder's ``model.safetensors``, or in such a
    file. Raises ``UserError``.
    """
    path = Path(folder)
    path = path / "model.safetensors" if path.is_dir() else path
    try:
        return Additive.from_arrays(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(
            f"{path} holds no boosted function ({error}): name the results folder of a finished "
            "run of ffgb"
        ) from error


def predictor(
    task: TorchTask, function: Additive, options: FFGBOptions, method: str
) -> Callable[[Values], Values]:
    """Return x (n, ...) -> values (n, outputs) for a function learned on a task."""
    oracle = oracle_of(task, options, method)
    return lambda x: values_at(function, x, task.num_outputs, oracle.predict)
