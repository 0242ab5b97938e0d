"""What ensemble methods send their clients (``algorithms.common.sent``)."""

from dataclasses import dataclass

from algorithms.common.sent import Sent


@dataclass(frozen=True)
class CollectingSent(Sent):
    """``phase`` = "train-predictor": the clients train the predictors first."""

    phase: str = ""


@dataclass(frozen=True)
class PredictorsSent(Sent):
    """Names of the arrays of the predictors that a message holds."""

    predictor_arrays: list[str]


@dataclass(frozen=True)
class DrawSent(Sent):
    """Which of the round's draws of predictors it is and, if clients keep a cache: its
    size, what the server takes it to hold, and the hashes of the drawn predictors, of
    which ``new`` are in the message.
    """

    draw: int
    cache: int | None = None
    cache_holds: int | None = None
    hashes: list[str] | None = None
    new: list[int] | None = None


@dataclass(frozen=True)
class MixturesSent(Sent):
    """Whether an evaluation sends two mixtures of densities instead of predictors."""

    mixtures: bool
