"""Options of the tasks, one dataclass each. Does not import PyTorch, so that settings
can be read and checked quickly.
"""

from dataclasses import dataclass
from math import isfinite

from fedapps.algorithms.common.options import Options, check_range, option

LOSSES = ("log", "squared")
# Stands for what follows from sums over the clients.
SUMS = "sums"
# Special tokens of a vocabulary of words: padding, beginning, end, unknown.
WORD_MARKS = 4


@dataclass(frozen=True)
class RegressionOptions(Options):
    """Options of task ``regression``."""

    loss: str = option(
        "squared",
        "loss of the standardised error; huber: absolute beyond 1",
        choices=("squared", "huber", "absolute"),
    )
    center: str = option(
        SUMS,
        "subtracted from targets in training: a number, or one per target; sums: their mean",
    )
    scale: str = option(SUMS, "targets are then divided by this, likewise; sums: their deviation")

    def check(self) -> None:
        """Check the numbers."""
        for name in ("center", "scale"):
            values = numbers_in(text := getattr(self, name))
            if text != SUMS and (
                not values
                or not all(map(isfinite, values))
                or (name == "scale" and min(values) <= 0)
            ):
                what = "numbers above 0" if name == "scale" else "numbers"
                raise ValueError(
                    f"{name} = {text!r}: must be {SUMS}, or {what} with commas between them, one "
                    "or one per target"
                )


@dataclass(frozen=True)
class SurvivalOptions(Options):
    """Options of task ``survival``."""

    event: str = option(
        "event",
        'column that is 1 where the event happened at the time, 0 where it is censored; "": it '
        "always happened",
    )


def numbers_in(text: str) -> tuple[float, ...]:
    """Return the numbers in a comma-separated list; () if it is none."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()


@dataclass(frozen=True)
class TextOptions(Options):
    """Options of task ``text``."""

    role: str = option("character_id", "column of the speaking role")
    text: str = option("text", "column of what is said")
    length: int = option(80, "characters of a sequence", low=1, high=10_000)
    min_characters: int = option(2, "roles with less training text are left out", low=2)
    validation: float = option(
        0.0,
        "part of a role's training sequences, the last ones; 0: training sequences serve instead",
        low=0,
        high=1,
        open_high=True,
    )
    score_on: str = option(
        "test",
        "what roles are scored on; validation: to choose settings by; held-out: half of that, by "
        "which no method chooses",
        choices=("test", "validation", "held-out"),
    )

    def check(self) -> None:
        """Check that there is something to score on."""
        if self.score_on != "test" and not self.validation:
            raise ValueError(
                f"score-on = {self.score_on!r}: needs a part of the text that is not trained on: "
                "set validation, to 0.1 say"
            )


@dataclass(frozen=True)
class PointMassOptions(Options):
    """Options of task ``point-mass``. With exponent 1 and size 100 the optimal log loss
    is the paper's 3.681.
    """

    size: int = option(100, "outcomes, and as many predictors", low=2, high=10_000)
    exponent: float = option(1.0, "outcome k occurs with a share of (k + 1)^-exponent", low=0)
    samples: int = option(1_000_000, "samples of all clients together", low=1)
    loss: str = option("log", "loss of the ensemble", choices=LOSSES)
    epsilon: float = option(
        0.01,
        "uniform share in every predictor under the log loss",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )

    def check(self) -> None:
        """Check that every outcome has a sample."""
        check_range("samples", self.samples, self.size)


@dataclass(frozen=True)
class UnigramOptions(Options):
    """Options of task ``unigram``."""

    role: str = option("character_id", "column of the speaking role")
    text: str = option("text", "column of what is said")
    loss: str = option("log", "loss of the ensemble", choices=LOSSES)
    epsilon: float = option(
        0.01,
        "uniform share in every predictor under the log loss",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )


@dataclass(frozen=True)
class EnsembleOptions(Options):
    """Options of task ``ensemble-classification``: base predictors, trained by the
    server on samples that no client holds.
    """

    predictors: int = option(10, "nets (model.name), trained on the server before round 1", low=1)
    kind: str = option(
        "even",
        "what they know; even: labels alike; unequal: some many labels, most one; overlapping: "
        "most the same; flawed: half are wrong",
        choices=("even", "unequal", "overlapping", "flawed"),
    )
    labels_each: int = option(3, "labels that a net is trained on", low=1)
    share: float = option(
        0.3,
        "part of the samples that trains the nets; the rest is dealt; 0: none, for trained nets of "
        "your own",
        low=0,
        high=1,
        open_high=True,
    )
    epochs: int = option(20, "of a net's training", low=1)
    loss: str = option("log", "loss of the ensemble", choices=LOSSES)
    epsilon: float = option(
        0.01,
        "uniform share in every predictor under the log loss",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )


@dataclass(frozen=True)
class SpeechOptions(Options):
    """Options of task ``speech``."""

    audio: str = option("audio", "column of the sounds")
    length: int = option(16_000, "samples of each: cut, or filled with silence", low=1)


@dataclass(frozen=True)
class TextPairsOptions(Options):
    """Options of task ``text-pairs``."""

    first: str = option("question_1", "column of the first text")
    second: str = option("question_2", "column of the second text")
    length: int = option(200, "tokens of a pair: cut, or padded", low=8)
    checkpoint: str = option(
        "distilbert/distilbert-base-uncased",
        "a DistilBERT: a folder or, with model.pretrained, a hub name",
    )


@dataclass(frozen=True)
class WordsOptions(Options):
    """Options of task ``words``."""

    text: str = option("text", "column of the texts")
    vocabulary: int = option(
        10_000, "words that have a number, four marks included", low=WORD_MARKS + 1
    )
    length: int = option(10, "words of a sample", low=1)
    embedding: int = option(200, "width of the LSTM's embedding", low=1)
    hidden: int = option(256, "width of its layers", low=1)
    layers: int = option(2, "number of its layers", low=1)


#: Rows, dealt to the clients in blocks, and columns of the lasso's matrix A.
LASSO = 200, 400
#: Part of the samples, or observations, of a convex problem for testing.
TEST = 0.2


@dataclass(frozen=True)
class LassoOptions(Options):
    """Options of task ``lasso``."""

    sparsity: int = option(20, "non-zeros of the solution", low=1, high=LASSO[1])
    radius: float = option(
        0.0, "of the l1 ball; 0: that of the solution, whose objective is then 0", low=0
    )


@dataclass(frozen=True)
class SparseLogisticOptions(Options):
    """Options of task ``sparse-logistic``."""

    radius: float = option(20.0, "of the l1 ball of every class's weights", low=0, open_low=True)


@dataclass(frozen=True)
class MatrixCompletionOptions(Options):
    """Options of task ``matrix-completion``."""

    center: str = option(
        "auto",
        "subtracted first: the mean, or biases of rows and columns; auto: bias, generated: none",
        choices=["auto", "none", "mean", "bias"],
    )
    clip: bool = option(True, "clip predictions to the range of a client's training observations")
    partition: str = option(
        "iid",
        "iid: observations dealt evenly; users: a user's (a row's) all to one client",
        choices=["iid", "users"],
    )
    user: str = option("user_id", "column of the users, whole numbers from 0 or 1 on")
    item: str = option("movie_id", "column of the items, likewise")
    rating: str = option("rating", "column of the ratings")
    rows: int = option(
        0, "of the matrix; 0: 60 generated (943 users), or those of the table", low=0
    )
    columns: int = option(
        0, "of the matrix; 0: 80 generated (1682 items), or those of the table", low=0
    )
    observations: int = option(
        0,
        "observed entries; 0: half of them (100,000 ratings), of a table all",
        low=0,
    )
    noise: float = option(0.1, "in the observations of a generated matrix", low=0)
    radius: float = option(
        0.0,
        "of the nuclear-norm ball; centred: in standard deviations; 0: chosen, not centred: the "
        "norm of the whole matrix",
        low=0,
    )


@dataclass(frozen=True)
class ConstraintOptions(Options):
    """Options of task ``constrained-classification``: the norm ball of each layer's
    weights.
    """

    ball: str = option(
        "l2", "l1 (sparse), l2, or nuclear (low rank; vectors l2)", choices=["l1", "l2", "nuclear"]
    )
    radius: float = option(10.0, "of each ball", low=0, open_low=True)
