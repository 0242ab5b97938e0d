"""FedMDFG's direction: every client's loss falls along it to first order, and losses
that are far apart come closer.

Source: Pan, Wang, Li, Wang, Tang, Zhao, "FedMDFG: Federated Learning with
Multi-Gradient Descent and Fair Guidance", AAAI 2023, DOI 10.1609/aaai.v37i8.26122, as
in its authors' program. With the updates u_k of m clients and their losses l before
them:

    s_k = u_k, scaled to the mean length mu of all updates
    h   = (p . l/|l|) l/|l| - p,  p = 1/sqrt(m)
    s_0 = sum_k h_k u_k, scaled to mu, if the angle of l and p exceeds theta
    d   = the shortest mixture of s_0 .. s_m, scaled to |mean of s_1 .. s_m|

The inner product of the shortest mixture with each s_j is at least its squared length.
So -u_k being a gradient, no client's loss rises along d to first order, and with s_0
the cosine of l and p rises: its derivative is -h . dl / |l|, with dl_k = -<u_k, d>.
That holds for s_0 made of the updates as they are; the authors' program makes it of the
scaled ones, along which the losses need not come closer. Without s_0 where the mixture
with it is 0: losses cannot come closer, and still fall.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedapps.algorithms.common.mirror import Array
from fedapps.algorithms.fairness.weight_rules import min_norm_in_box

# Of the mean length: shorter updates have no direction, shorter mixtures are 0.
LEAST = 1e-6


def away_from_equal(losses: ArrayLike, theta: float) -> Array:
    """Return h (m,), or zeros if the losses (m,) are within the angle ``theta``, in
    degrees, of being equal.
    """
    values = np.asarray(losses, np.float64)
    p, size = len(values) ** -0.5, np.linalg.norm(values)
    unit = values / size if size > 0 else np.full(len(values), p)
    cosine = p * unit.sum()
    return cosine * unit - p if cosine < np.cos(np.radians(theta)) else np.zeros(len(values))


def common_descent(updates: ArrayLike, losses: ArrayLike, theta: float) -> tuple[Array, bool]:
    """Return d (n,) for the updates (m, n) and losses (m,), and whether it also brings
    the losses closer. Where no direction does both, it only serves all clients; zeros
    if none does.
    """
    rows = np.asarray(updates, np.float64)
    guide = away_from_equal(losses, theta) @ rows
    lengths = np.linalg.norm(rows, axis=1)
    if not (mean := lengths.mean()):
        return np.zeros(rows.shape[1]), False
    moving = _scaled(rows[lengths > LEAST * mean], mean)
    wanted = np.linalg.norm(moving.mean(0))
    if np.linalg.norm(guide) > LEAST * mean:
        both = _shortest(np.vstack([moving, _scaled(guide[None], mean)]))
        if both.any():
            return wanted * both, True
    return wanted * _shortest(moving), False


def _scaled(rows: Array, length: float) -> Array:
    return np.asarray(rows * (length / np.linalg.norm(rows, axis=1)[:, None]))


def _shortest(rows: Array) -> Array:
    """Return the direction of the shortest mixture of rows (m, n) of one length, of
    length 1; zeros if the mixture is 0.
    """
    weights = min_norm_in_box(rows @ rows.T, np.full(len(rows), 1 / len(rows)), 1.0)
    mixture = weights @ rows
    length = np.linalg.norm(mixture)
    return np.asarray(mixture * (1 / length if length > LEAST * np.linalg.norm(rows[0]) else 0))
