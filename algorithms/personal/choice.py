"""Selects one of several candidates for a client, such as a mixing weight: by its own
validation losses, by those of all clients, or by its own shrunk towards those of all.

A client's curve c_i holds the mean losses of its n_i validation samples at the
candidates. Only differences along the curve matter for the least loss, so every curve
is centred at its mean. With a dozen samples it is mostly noise, and with many it knows
better than the curve p of all clients:

    p + w_i (c_i - p),    w_i = n_i / (n_i + k)

k is the number of samples at which both have equal weight. With common p, deviations of
clients of variance tau^2 and noise of variance sigma^2 / n_i it is the best linear
estimate for k = sigma^2 / tau^2. ``SHRINK`` was chosen on held-out jobs
(``docs/results/personal-forms.md``): an estimate of sigma and tau from the clients'
curves was no better.
"""

import math

import numpy as np

from fedapps.algorithms.common.robust import Floats, shortening

#: A curve that counts for other clients may be at most this many times longer than the
#: median curve, and count at most this many times as much.
MOST, MOST_COUNT = 3.0, 5.0
#: k.
SHRINK = 12.0


def least(losses: Floats, accuracies: Floats | None = None) -> int:
    """Return the position of the least loss. Ties: the highest accuracy, then the first
    position (the most federated).
    """
    order = np.where(np.isnan(losses), math.inf, losses)
    return min(
        range(len(order)), key=lambda i: (order[i], 0.0 if accuracies is None else -accuracies[i])
    )


def shrunk(own: Floats, pooled: Floats, samples: int, k: float) -> Floats:
    """Return ``w own + (1 - w) pooled`` with ``w = samples / (samples + k)``; both
    curves less their means. k may be infinite.
    """
    weight = 0.0 if math.isinf(k) else samples / (samples + k)
    return weight * centred(own) + (1 - weight) * centred(pooled)


def sound_curve(curve: object, samples: object, length: int) -> bool:
    """Return whether a client's ``curve`` is a list of this ``length`` of finite
    numbers, of a positive number of ``samples``.
    """
    return (
        isinstance(curve, list)
        and len(curve) == length > 0
        and all(isinstance(value, int | float) and math.isfinite(value) for value in curve)
        and isinstance(samples, int | float)
        and math.isfinite(samples)
        and samples > 0
    )


def pooled_curve(losses: Floats, samples: Floats) -> Floats:
    """Return the mean of the curves ``losses`` (clients, grid), bounded, weighted by
    the clients' ``samples`` (clients,).
    """
    return np.asarray(samples @ bounded(losses) / samples.sum())


def bounded(losses: Floats) -> Floats:
    """Return the curves ``losses`` (clients, grid) less their means, none longer than
    ``MOST`` times the median one.

    A client that lies, or whose losses have exploded, must not choose for all.
    """
    curves = centred(losses)
    return np.asarray(curves * shortening(np.linalg.norm(curves, axis=1), MOST)[:, None])


def counted(losses: Floats, samples: Floats) -> Floats:
    """Return the ``samples`` (clients,) as they count for the curves ``losses``
    (clients, grid).

    The pooled curve is a sum of n_i c_i, so the influence of a client is n_i ||c_i||.
    It is at most ``MOST_COUNT`` times the median influence, whatever n_i a client
    claims: if m - 1 sound curves agree, the sum of theirs is m - 1 times the median,
    and one liar does not turn it for m > 1 + ``MOST_COUNT``.
    """
    norms = np.linalg.norm(bounded(losses), axis=1)
    return np.asarray(samples * shortening(samples * norms, MOST_COUNT))


def centred(curves: Floats) -> Floats:
    """Return curves (..., grid) less their means."""
    return np.asarray(curves - curves.mean(axis=-1, keepdims=True))
