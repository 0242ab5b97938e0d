"""Declarations of what constrained methods send (``algorithms.contract.sent``)."""

from dataclasses import dataclass

from fedapps.algorithms.contract.sent import Sent


@dataclass(frozen=True)
class PhaseSent(Sent):
    """``phase``: "prepare" asks for the sums of ``stage``, "evaluate" for the measures;
    if there is none, clients train.
    """

    phase: str | None = None
    stage: str | None = None


@dataclass(frozen=True)
class FedFWSent(Sent):
    """The steps of a FedFW round."""

    etas: list[float]
    lambdas: list[float]
    rhos: list[float]
    dual_step: float
    num_clients: int
    variant: str
    batch_size: int
    stochastic: bool


@dataclass(frozen=True)
class FedFWExtras(Sent):
    """Whether the message holds the mean of the dual variables after the point, and
    whether the client must send its state.
    """

    dual_mean: bool | None = None
    resync: bool | None = None


@dataclass(frozen=True)
class DFWTraceSent(Sent):
    """The side of the gradient on which it is multiplied by the vector."""

    side: str


@dataclass(frozen=True)
class ProjectedSent(Sent):
    """The steps of a round of FedAvg with projection."""

    learning_rate: float
    local_steps: int
    batch_size: int
