"""Declarations of what methods with synthetic samples send
(``algorithms.contract.sent``).
"""

from dataclasses import dataclass

from fedapps.algorithms.contract.sent import Sent


@dataclass(frozen=True)
class FedEvgSent(Sent, prefix="evg-"):
    """The options of a FedEvg client's steps.

    ``low``: the least value of the images.
    """

    lambda_: float
    langevin_steps: int
    step: float
    noise: float
    clip: float
    weights: str
    persistent: bool
    low: float


@dataclass(frozen=True)
class FedDMSent(Sent, prefix="dm-"):
    """The options of a FedDM client's steps. ``low``: the least value of the images."""

    images: int
    steps: int
    rate: float
    radius: float
    low: float
