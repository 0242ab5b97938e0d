"""Table of all tasks by name. To add a task, add an entry here and its class to
``fedapps/tasks/__init__.py``.

A task is built once per process. Beside the members of ``Task`` it has those that its
methods need (``fedapps/methods``): a torch model and tensors, an objective and a
domain, or predictors. What the rest of the project asks a task for:
``fedapps/tasks/capabilities.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapps import tasks
from fedapps.algorithms.common.options import Options, nearest
from fedapps.data.source import GENERATED
from fedapps.errors import UserError
from fedapps.extensions.own_code import check_options, guarded, load
from fedapps.extensions.registered import reference_of, registered
from fedapps.tasks.capabilities import Task
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import (
    ConstraintOptions,
    EnsembleOptions,
    LassoOptions,
    MatrixCompletionOptions,
    PointMassOptions,
    RegressionOptions,
    SparseLogisticOptions,
    SpeechOptions,
    SurvivalOptions,
    TextOptions,
    TextPairsOptions,
    UnigramOptions,
    WordsOptions,
)


@dataclass(frozen=True)
class TaskKind:
    """Entry of the table: ``build(options, context) -> Task``.

    ``options``: dataclass of the task's own settings table ``table``, or ``None``.
    ``model``, ``start``: the meaning of ``model.name = "auto"`` and ``model.start =
    "auto"``. ``defaults``: settings of the
    default job that differ from the general defaults. ``like``, of a task of the user's
    own: methods that run on this one run on it, too; "": those that run on every task
    with a torch net.

    ``sources``: the bundled sets that ``data.source`` may name, the default first.
    ``data``: the settings of the table ``data`` that the task reads, all others are
    refused; ``None``: it reads them all.
    """

    build: Callable[[Any, RunContext], Task]
    options: type[Options] | None = None
    table: str = ""
    model: str = "mlp"
    defaults: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    sources: tuple[str, ...] = ("digits",)
    data: tuple[str, ...] | None = None
    like: str = ""
    start: str = "random"


# A client holds about 50 digits: a weak learner needs fewer and larger steps than on
# the paper's data.
DIGITS_JOB = {
    "ffgb-distill.oracle-epochs": 20,
    "ffgb-distill.oracle-learning-rate": 0.01,
    "ffgb-distill.distill-learning-rate": 0.005,
    "public.samples": 1000,
}
#: Epochs and rate: of a grid the least validation loss of FedAvg on four tables
#: (docs/results/natural-tables.md).
TABULAR_JOB: dict[str, bool | int | float | str] = {
    "clients-per-round": 0,
    "data.partition": "natural",
    "data.validation": 0.0,
    "train.local-epochs": 5,
    "train.batch-size": 20,
    "train.momentum": 0.0,
    "train.learning-rate": 0.3,
    "train.max-gradient-norm": 1.0,
    "fedopt.server-learning-rate": 0.1,
}
#: Least squares of a dozen standardised inputs diverges at the rates that cross-entropy
#: bears.
REGRESSION_JOB: dict[str, bool | int | float | str] = {
    **TABULAR_JOB,
    "train.learning-rate": 0.02,
}
#: One batch has all rows of a client, and with them its risk sets. Epochs and rate:
#: least validation loss of FedAvg (docs/results/natural-tables.md).
SURVIVAL_JOB: dict[str, bool | int | float | str] = {
    **TABULAR_JOB,
    "train.batch-size": 1_000_000,
}
TEXT_JOB = {
    "train.local-epochs": 1,
    "train.momentum": 0.0,
    "train.weight-decay": 0.0,
    "train.learning-rate": 4.0,
    "train.lr-decay": 1.0,
}

TASKS: dict[str, TaskKind] = {
    "classification": TaskKind(lambda o, c: tasks.Classification(o, c), model="auto"),
    "digits": TaskKind(lambda o, c: tasks.Digits(o, c), defaults=DIGITS_JOB),
    "tabular": TaskKind(
        lambda o, c: tasks.Tabular(o, c),
        model="logistic",
        defaults=TABULAR_JOB,
        sources=(GENERATED,),
        start="zero",
    ),
    "regression": TaskKind(
        lambda o, c: tasks.Regression(o, c),
        RegressionOptions,
        "regression",
        "auto",
        REGRESSION_JOB,
        (GENERATED, "diabetes"),
        start="zero",
    ),
    "survival": TaskKind(
        lambda o, c: tasks.Survival(o, c),
        SurvivalOptions,
        "survival",
        "linear",
        SURVIVAL_JOB,
        (GENERATED,),
        start="zero",
    ),
    "text": TaskKind(
        lambda o, c: tasks.Text(o, c),
        TextOptions,
        "text",
        "char-lstm",
        TEXT_JOB,
        (GENERATED,),
        data=("source", "test-rows"),
    ),
    "point-mass": TaskKind(
        lambda o, c: tasks.PointMass(o, c),
        PointMassOptions,
        "point-mass",
        sources=(GENERATED,),
        data=(),
    ),
    "unigram": TaskKind(
        lambda o, c: tasks.Unigram(o, c),
        UnigramOptions,
        "unigram",
        sources=(GENERATED,),
        data=("source",),
    ),
    "ensemble-classification": TaskKind(
        lambda o, c: tasks.EnsembleClassification(o, c), EnsembleOptions, "ensemble"
    ),
    "lasso": TaskKind(
        lambda o, c: tasks.Lasso(o, c), LassoOptions, "lasso", sources=(GENERATED,), data=()
    ),
    "sparse-logistic": TaskKind(
        lambda o, c: tasks.SparseLogistic(o, c),
        SparseLogisticOptions,
        "sparse-logistic",
        data=(),
    ),
    "matrix-completion": TaskKind(
        lambda o, c: tasks.Completion(o, c),
        MatrixCompletionOptions,
        "matrix-completion",
        sources=(GENERATED, "ratings", "digits"),
        data=("source", "split"),
    ),
    "qap": TaskKind(
        lambda o, c: tasks.Qap(o, c),
        defaults={"num-clients": 72},
        sources=("chr12a",),
        data=("source",),
    ),
    "constrained-classification": TaskKind(
        lambda o, c: tasks.ConstrainedClassification(o, c),
        ConstraintOptions,
        "constraint",
        defaults={"fedfw.schedule": "non-convex"},
    ),
    "speech": TaskKind(lambda o, c: tasks.Speech(o, c), SpeechOptions, "speech", "m5"),
    "text-pairs": TaskKind(
        lambda o, c: tasks.TextPairs(o, c), TextPairsOptions, "text-pairs", "distilbert"
    ),
    "words": TaskKind(lambda o, c: tasks.Words(o, c), WordsOptions, "words", "stacked-lstm"),
}

#: The tasks with a torch net. A method that runs on all of them runs on those of the
#: user's own, too.
NET_TASKS = (
    "classification",
    "digits",
    "tabular",
    "regression",
    "survival",
    "text",
    "speech",
    "text-pairs",
    "words",
)


def find_task(name: str) -> TaskKind:
    """Return the task of this name. Raises ``UserError`` if there is none."""
    if name in TASKS:
        return TASKS[name]
    reference = reference_of("task", name)
    if reference is None:
        known = [*TASKS, *registered("task")]
        raise UserError(f"task = {name!r}: {nearest(name, known)}choose one of {', '.join(known)}")
    return checked_task(name, load("task", reference, name))


def checked_task(name: str, found: object) -> TaskKind:
    """Return ``found``, what ``name`` stands for. Raises ``UserError`` if it is no
    entry that could run.
    """
    if isinstance(found, type):  # a class that needs no options of its own
        found = TaskKind(found)
    if not isinstance(found, TaskKind):
        raise UserError(
            f"task = {name!r}: is a {type(found).__name__}, no class of a task and no "
            "fedapps.tasks.registry.TaskKind: write "
            "TASK = TaskKind(MyTask, MyOptions, 'my-table')"
        )
    if found.like and found.like not in TASKS:
        raise UserError(
            f"task = {name!r}: like = {found.like!r}: {nearest(found.like, TASKS)}choose one of "
            f"{', '.join(TASKS)}"
        )
    check_options("task", name, found.options, found.table)
    return found


def task_name(name: str, allowed: tuple[str, ...]) -> str:
    """Return the task named by a setting; ``auto`` is the first of ``allowed``. Raises
    ``UserError`` for a task that is not allowed.
    """
    name = allowed[0] if name == "auto" else name
    kind = find_task(name)
    own = {kind.like} if kind.like else set(NET_TASKS)
    if name in allowed or (name not in TASKS and own <= set(allowed)):
        return name
    if name in ("regression", "survival"):
        raise UserError(
            f"task = {name!r}: this method needs classes, or a problem of its own, and no "
            "numbers to predict: it runs on "
            f"{', '.join(allowed)}"
        )
    hint = (
        ""
        if name in TASKS
        else "; like = '...' in its TaskKind says which of them it can stand for"
    )
    raise UserError(f"task = {name!r}: this method runs on {', '.join(allowed)}{hint}")


def make_task(name: str, options: Any, context: RunContext, site_data: str = "") -> Task:
    """Return the task of this name. ``site_data``: location of the site's own data, or
    "".
    """
    if context.sites.own or site_data:
        if context.data.test_rows or context.data.folds:
            raise UserError(
                "data.test-rows, data.folds: are for simulations: sites with data of their own "
                "send no rows, and choose what they test on"
            )
        return tasks.site_task(name, options, context, site_data)
    if name in TASKS:
        return TASKS[name].build(options, context)
    with guarded("task", name, "cannot be made", own=True):
        found = find_task(name).build(options, context)
    if missing := [
        part for part in ("name", "check", "initial_arrays") if not hasattr(found, part)
    ]:
        raise UserError(
            f"task = {name!r}: {type(found).__name__} has no {missing[0]!r}: a task has name, "
            "check and initial_arrays"
        )
    return found
