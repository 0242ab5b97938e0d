"""Schedule of the local learning rate: clients train with it, and a server may need it
(q-FedAvg's Lipschitz constant, SCAFFOLD's bound).
"""

from collections.abc import Mapping
from typing import Any

#: Names of the learning rate in a training configuration: ours, and that of Flower's
#: apps.
RATES = ("learning-rate", "lr")


def decayed(rate: float, decay: float, every: int, server_round: int) -> float:
    """Return ``rate * decay^floor((t - 1) / every)`` for round t = ``server_round``
    (the first is 1).
    """
    return rate * decay ** (max(0, server_round - 1) // every)


def local_rate(config: Mapping[str, Any], server_round: int) -> float:
    """Return the local learning rate of a round from a training configuration; 0 if it
    holds none.
    """
    rate = next((float(config[name]) for name in RATES if name in config), 0.0)
    decay, every = float(config.get("lr-decay", 1.0)), int(config.get("lr-decay-every", 1))
    return decayed(rate, decay, every, server_round)
