"""What constrained methods send their clients (``algorithms.common.sent``)."""

from dataclasses import dataclass

from algorithms.common.sent import Sent


@dataclass(frozen=True)
class PhaseSent(Sent):
    """``phase``: "prepare" asks for the sums of ``stage``, "evaluate" for the measures;
    without one clients train.
    """

    phase: str | None = None
    stage: str | None = None


@dataclass(frozen=True)
class FedFWSent(Sent):
    """The steps of a FedFW round."""

    etas: list[float]
    lambdas: list[float]
    rhos: list[float]
    lambda_0: float
    num_clients: int
    variant: str
    batch_size: int
    stochastic: bool


@dataclass(frozen=True)
class FedFWExtras(Sent):
    """Whether the mean of the dual variables follows the point, and whether the client
    is to send its state.
    """

    dual_mean: bool | None = None
    resync: bool | None = None


@dataclass(frozen=True)
class DFWTraceSent(Sent):
    """On which side of the gradient the vector stands."""

    side: str


@dataclass(frozen=True)
class ProjectedSent(Sent):
    """The steps of a round of FedAvg with projection."""

    learning_rate: float
    local_steps: int
    batch_size: int
