"""Declarations of what ensemble methods send (``algorithms.contract.sent``)."""

from dataclasses import dataclass

from fedapps.algorithms.contract.sent import Sent


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
    """The number of the draw of predictors within the round. If clients keep a cache,
    also its size, the contents that the server expects, and the hashes of the drawn
    predictors; the message holds those in ``new``.
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
