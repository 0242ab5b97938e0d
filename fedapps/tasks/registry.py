"""Every task, by name: data, model and objective together. To add one, add an entry.

A task is built once a process from the settings. Beside the three members of ``Task`` it has whatever the methods that run on it
ask for (``fedapps/methods``): a torch model and tensors, an objective and a domain, predictors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from algorithms.common.checks import nearest
from fedapps.errors import UserError
from fedapps.tasks.classification import Classification, Digits
from fedapps.tasks.constrained_classification import ConstrainedClassification, ConstraintOptions
from fedapps.tasks.convex import Lasso, LassoOptions, Qap, QapOptions, SparseLogistic, SparseLogisticOptions
from fedapps.tasks.densities import PointMass, PointMassOptions, Unigram, UnigramOptions
from fedapps.tasks.ensemble_classification import EnsembleClassification, EnsembleOptions
from fedapps.tasks.matrix_completion import Completion, MatrixCompletionOptions
from fedapps.tasks.next_character import Text, TextOptions
from fedapps.tasks.next_word import Words, WordsOptions
from fedapps.tasks.speech import Speech, SpeechOptions
from fedapps.tasks.tabular import Tabular, TabularOptions
from fedapps.tasks.text_pairs import TextPairs, TextPairsOptions

if TYPE_CHECKING:
    from fedapps.settings import Settings


class Task(Protocol):
    """What every task can do. One whose data say who the clients are also has ``natural_clients() -> int``, their number (0: any)."""

    name: str

    def check(self, num_clients: int) -> None:
        """Prepare everything, so that what is wrong is said before a run starts (``UserError``)."""

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model with which a run starts, by array name."""


@dataclass(frozen=True)
class TaskKind:
    """``build(settings) -> Task``; ``options``: dataclass of the task's own table, or ``None``.

    ``model``: what ``model.name = "auto"`` means. ``defaults``: settings of a small job where they differ from everyone's.
    """

    build: Callable[["Settings"], Task]
    options: type | None = None
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
    "classification": TaskKind(Classification),
    "digits": TaskKind(Digits, defaults=DIGITS_JOB),
    "tabular": TaskKind(Tabular, TabularOptions, "tabular", "logistic", TABULAR_JOB),
    "text": TaskKind(Text, TextOptions, "text", "char-lstm", TEXT_JOB),
    "point-mass": TaskKind(PointMass, PointMassOptions, "point-mass"),
    "unigram": TaskKind(Unigram, UnigramOptions, "unigram"),
    "ensemble-classification": TaskKind(EnsembleClassification, EnsembleOptions, "ensemble"),
    "lasso": TaskKind(Lasso, LassoOptions, "lasso"),
    "sparse-logistic": TaskKind(SparseLogistic, SparseLogisticOptions, "sparse-logistic"),
    "matrix-completion": TaskKind(Completion, MatrixCompletionOptions, "matrix-completion"),
    "qap": TaskKind(Qap, QapOptions, "qap", defaults={"num-clients": 72}),
    "constrained-classification": TaskKind(
        ConstrainedClassification, ConstraintOptions, "constraint", defaults={"fedfw.schedule": "non-convex"}
    ),
    "speech": TaskKind(Speech, SpeechOptions, "speech", "m5"),
    "text-pairs": TaskKind(TextPairs, TextPairsOptions, "text-pairs", "distilbert"),
    "words": TaskKind(Words, WordsOptions, "words", "stacked-lstm"),
}


def task_name(name: str, allowed: tuple[str, ...]) -> str:
    """Return the task of a setting: ``auto`` is the first that the method allows. Raises ``UserError`` for one it does not."""
    name = allowed[0] if name == "auto" else name
    if name not in TASKS:
        raise UserError(f"task = {name!r}: {nearest(name, TASKS)}choose one of {', '.join(TASKS)}")
    if name not in allowed:
        raise UserError(f"task = {name!r}: this method runs on {', '.join(allowed)}")
    return name


def build_task(settings: "Settings", site_data: str = "") -> Task:
    """Return the task of the settings. ``site_data``: where a site has its own data."""
    if settings.sites.own or site_data:
        from fedapps.tasks.site_data import site_task  # late: it imports tasks of this table

        return site_task(settings, site_data)
    return TASKS[settings.task].build(settings)
