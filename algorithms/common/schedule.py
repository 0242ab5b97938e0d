"""The local learning rate over rounds, which a client trains with and a server may have to know (q-FedAvg's Lipschitz constant)."""


def decayed(rate: float, decay: float, every: int, server_round: int) -> float:
    """Return ``rate * decay^floor((t - 1) / every)`` for round ``t`` (the first is 1)."""
    return rate * decay ** (max(0, server_round - 1) // every)
