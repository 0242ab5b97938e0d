"""The local learning rate and steps: clients train with them, and a server may need
them (q-FedAvg's Lipschitz constant, SCAFFOLD's bound).
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


def effective_steps(steps: int, momentum: float) -> float:
    """Return how many learning rates a gradient of 1 in each of ``steps`` steps moves a
    weight.

    Without momentum that is the number of steps; with momentum beta the k-th last step
    counts ``(1 - beta^k) / (1 - beta)`` times, because its gradient stays in the
    momentum buffer.
    """
    return sum((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))


def samples_within(share: float, samples: int, batch_size: int, epochs: float) -> int:
    """Return how many samples the whole steps hold that fit into a ``share`` of a
    training: epochs of ``samples`` samples each, in mini-batches of which the last of
    an epoch may be smaller.
    """
    whole, rest = divmod(int(share * samples * epochs + 1e-6), max(1, samples))
    return whole * samples + rest - rest % batch_size


def samples_of(epochs: float, samples: int, batch_size: int) -> int:
    """Return how many samples a training goes through: those of the whole steps that
    fit into the epochs, of the first step at least.
    """
    return max(samples_within(1.0, samples, batch_size, epochs), min(batch_size, samples))


def passes(epochs: float, samples: int, batch_size: int) -> tuple[int, int]:
    """Return the whole passes over the samples of a training, and how many samples a
    last pass in part goes through.
    """
    return divmod(samples_of(epochs, samples, batch_size), max(1, samples))
