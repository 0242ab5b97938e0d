"""Schedule of the local learning rate: clients train with it, and a server may need it
(q-FedAvg's Lipschitz constant).
"""


def decayed(rate: float, decay: float, every: int, server_round: int) -> float:
    """Return ``rate * decay^floor((t - 1) / every)`` for round t = ``server_round``
    (the first is 1).
    """
    return rate * decay ** (max(0, server_round - 1) // every)
