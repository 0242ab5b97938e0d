"""Selects a client's mixing weight: from its own validation losses, from those of all
clients, or from its own shrunk towards those of all.

The curve ``c_i`` of a client holds the mean losses of its n_i validation samples at the
weights of a grid. Only differences along the grid matter for the least loss, so every
curve is centred at its mean. With a dozen samples, a client's curve is mostly noise.
Let ``c_i = p + d_i + e_i``, with the clients' common curve p, the
client's own deviation d_i with variance tau^2, and the noise e_i of n_i samples with
variance sigma^2 / n_i (variances are sums over the grid). The best linear estimate of
the client's true curve is then

    p + w_i (c_i - p),
        w_i = tau^2 / (tau^2 + sigma^2 / n_i) = n_i / (n_i + k),    k = sigma^2 / tau^2

k is the number of samples at which a client's own curve and the common one have equal
weight.
sigma^2 is estimated from the two halves a, b of every client's samples, whose curves
differ by noise alone: ``E |c_a - c_b|^2 = sigma^2 (1 / n_a + 1 / n_b)``; tau^2 from
what is left of the spread of the clients' curves, as in a one-way analysis of variance
with groups of unequal sizes: ``E sum_i n_i |c_i - p|^2 = (m - 1) sigma^2 + (N - sum_i
n_i^2 / N) tau^2`` for m clients with N samples and p their weighted mean.
"""

import math

import numpy as np
from numpy.typing import NDArray

from algorithms.common.robust import shortening

Floats = NDArray[np.float64]
#: A curve that counts for other clients may be at most this many times longer than the
#: median curve, and count at most this many times as much.
MOST, MOST_COUNT = 3.0, 5.0


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


def half_noise(first: Floats, second: Floats, samples: tuple[int, int]) -> float:
    """Return an unbiased estimate of sigma^2, given the curves of two halves and their
    numbers of samples.
    """
    a, b = samples
    return float(a * b / (a + b) * ((centred(first) - centred(second)) ** 2).sum())


def shrinkage(losses: Floats, samples: Floats, noise: Floats) -> float:
    """Return k of the module docstring, infinite where the clients' curves differ by no
    more than noise.

    ``losses``: shape (clients, grid); ``samples`` (clients,); ``noise`` (clients,): the
    estimate of :func:`half_noise` for each client.
    """
    clients, total = len(samples), samples.sum()
    middle = np.median(noise)
    sigma = np.minimum(noise, MOST**2 * middle).mean() if middle > 0 else noise.mean()
    between = (samples[:, None] * (bounded(losses) - pooled_curve(losses, samples)) ** 2).sum()
    spread = total - (samples**2).sum() / total
    tau = (between - (clients - 1) * sigma) / spread if clients > 1 else 0.0
    return float(sigma / tau) if tau > 0 else math.inf


def centred(curves: Floats) -> Floats:
    """Return curves (..., grid) less their means."""
    return np.asarray(curves - curves.mean(axis=-1, keepdims=True))
