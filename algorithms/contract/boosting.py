"""Declarations of what boosting methods send (``algorithms.contract.sent``)."""

from dataclasses import dataclass

from fedapps.algorithms.contract.sent import Sent


@dataclass(frozen=True)
class OracleSent(Sent, prefix="oracle-"):
    """How FFGB-distill's clients fit a weak learner."""

    epochs: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class FunctionSent(Sent):
    """A message holds the learners of FFGB's function after version ``base``, up to
    ``version``.
    """

    base: int
    version: int
    loss: str
    learner_arrays: list[str] | None = None
    clip: float | None = None


@dataclass(frozen=True)
class FFGBTraining(Sent):
    """The steps of an FFGB round. ``lipschitz``: the constant, for FFGB.L."""

    variant: str
    etas: list[float]
    mu: float
    residual: bool
    clip_residual: float | None = None
    lipschitz: float = 0.0


@dataclass(frozen=True)
class HistogramSent(Sent):
    """The loss of histogram boosting and, for training, the number of sums to send."""

    loss: str
    sums: int | None = None


@dataclass(frozen=True)
class LocalBoostingSent(Sent, prefix="local-boosting-", method="local-boosting"):
    """How a client grows its own trees."""

    loss: str
    depth: int
    learning_rate: float
    min_leaf: int
    l2: float
    bins: int
