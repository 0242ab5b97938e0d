"""Every task, by name: data, model and objective together. To add one, add an entry, and its class to ``fedapps/tasks/__init__.py``.

A task is built once a process. Beside the members of ``Task`` it has whatever the methods that run on it ask for (``fedapps/methods``):
a torch model and tensors, an objective and a domain, predictors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from algorithms.common.checks import nearest
from algorithms.common.options import Options
from fedapps import tasks
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import (
    ConstraintOptions,
    EnsembleOptions,
    LassoOptions,
    MatrixCompletionOptions,
    PointMassOptions,
    QapOptions,
    SparseLogisticOptions,
    SpeechOptions,
    TabularOptions,
    TextOptions,
    TextPairsOptions,
    UnigramOptions,
    WordsOptions,
)


class Task(Protocol):
    """What every task can do. One whose data say who the clients are also has ``natural_clients() -> int``, their number (0: any)."""

    name: str

    def check(self, num_clients: int) -> None:
        """Prepare everything, so that what is wrong is said before a run starts (``UserError``)."""

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model with which a run starts, by array name."""


@dataclass(frozen=True)
class TaskKind:
    """``build(options, context) -> Task``; ``options``: dataclass of the task's own table, or ``None``.

    ``model``: what ``model.name = "auto"`` means. ``defaults``: settings of a small job where they differ from everyone's.
    """

    build: Callable[[Any, RunContext], Task]
    options: type[Options] | None = None
    table: str = ""
    model: str = "mlp"
    defaults: Mapping[str, bool | int | float | str] = field(default_factory=dict)


# A client holds some 50 digits: a weak learner needs fewer and larger steps than on the data of the paper.
DIGITS_JOB = {
    "ffgb-distill.oracle-epochs": 20,
    "ffgb-distill.oracle-learning-rate": 0.01,
    "ffgb-distill.distill-learning-rate": 0.005,
    "public.samples": 1000,
}
TABULAR_JOB = {
    "clients-per-round": 0,
    "train.local-epochs": 1,
    "train.batch-size": 20,
    "train.momentum": 0.0,
    "train.learning-rate": 0.1,
}
TEXT_JOB = {
    "train.local-epochs": 1,
    "train.momentum": 0.0,
    "train.weight-decay": 0.0,
    "train.learning-rate": 4.0,
    "train.lr-decay": 1.0,
}

TASKS: dict[str, TaskKind] = {
    "classification": TaskKind(lambda o, c: tasks.Classification(o, c)),
    "digits": TaskKind(lambda o, c: tasks.Digits(o, c), defaults=DIGITS_JOB),
    "tabular": TaskKind(lambda o, c: tasks.Tabular(o, c), TabularOptions, "tabular", "logistic", TABULAR_JOB),
    "text": TaskKind(lambda o, c: tasks.Text(o, c), TextOptions, "text", "char-lstm", TEXT_JOB),
    "point-mass": TaskKind(lambda o, c: tasks.PointMass(o, c), PointMassOptions, "point-mass"),
    "unigram": TaskKind(lambda o, c: tasks.Unigram(o, c), UnigramOptions, "unigram"),
    "ensemble-classification": TaskKind(lambda o, c: tasks.EnsembleClassification(o, c), EnsembleOptions, "ensemble"),
    "lasso": TaskKind(lambda o, c: tasks.Lasso(o, c), LassoOptions, "lasso"),
    "sparse-logistic": TaskKind(lambda o, c: tasks.SparseLogistic(o, c), SparseLogisticOptions, "sparse-logistic"),
    "matrix-completion": TaskKind(lambda o, c: tasks.Completion(o, c), MatrixCompletionOptions, "matrix-completion"),
    "qap": TaskKind(lambda o, c: tasks.Qap(o, c), QapOptions, "qap", defaults={"num-clients": 72}),
    "constrained-classification": TaskKind(
        lambda o, c: tasks.ConstrainedClassification(o, c),
        ConstraintOptions,
        "constraint",
        defaults={"fedfw.schedule": "non-convex"},
    ),
    "speech": TaskKind(lambda o, c: tasks.Speech(o, c), SpeechOptions, "speech", "m5"),
    "text-pairs": TaskKind(lambda o, c: tasks.TextPairs(o, c), TextPairsOptions, "text-pairs", "distilbert"),
    "words": TaskKind(lambda o, c: tasks.Words(o, c), WordsOptions, "words", "stacked-lstm"),
}


def task_name(name: str, allowed: tuple[str, ...]) -> str:
    """Return the task of a setting: ``auto`` is the first that the method allows. Raises ``UserError`` for one it does not."""
    name = allowed[0] if name == "auto" else name
    if name not in TASKS:
        raise UserError(f"task = {name!r}: {nearest(name, TASKS)}choose one of {', '.join(TASKS)}")
    if name not in allowed:
        raise UserError(f"task = {name!r}: this method runs on {', '.join(allowed)}")
    return name


def make_task(name: str, options: Any, context: RunContext, site_data: str = "") -> Task:
    """Return the task of this name. ``site_data``: where a site has data of its own."""
    if context.sites.own or site_data:
        return tasks.site_task(name, options, context, site_data)
    return TASKS[name].build(options, context)
