"""What fair methods send their clients (``algorithms.contract.sent``)."""

from dataclasses import dataclass

from fedapps.algorithms.contract.sent import Sent


@dataclass(frozen=True)
class PropFairSent(Sent, prefix="propfair-", method="propfair"):
    """What PropFair sends: M of the loss ``-log(1 - l / M)``."""

    m: float
