"""Robust means of points, some of which may be arbitrary: coordinate-wise median and
trimmed mean, (Multi-)Krum, geometric median.

All take points (n, d) as rows of equal weight; the order does not matter. f of the n
points are outliers of any size; the others are called sound. For any outliers, they
guarantee:

    median, n > 2 f
        every coordinate lies between the least and the greatest of the sound points
    trimmed mean, n > 2 f
        the same; with f = 0 it is the mean
    Multi-Krum, n >= 2 f + 3
        within (1 + sqrt((n - f - 2) / (n - 2 f - 1))) D of every sound point, D being
        the greatest distance between sound points
    geometric median, n > 2 f
        within 2 sum_i |x_i - c| / (n - 2 f), over sound x_i, of any point c

Proof for Krum: a sound point has n - f - 1 sound points within D, so its score is at
most (n - f - 2) D^2, and so is the score of each of the n - f points of least score. At
least n - 2 f - 1 of the n - f - 2 neighbours of such a point are sound, so the nearest
of these is within sqrt((n - f - 2) / (n - 2 f - 1)) D. Proof for the geometric median:
it minimises sum |z - x_i|, so sum_i |z - x_i| <= sum_i |c - x_i|. The triangle
inequality, applied to sound points and to outliers, gives (n - 2 f) |z - c| <= 2 sum_i
|x_i - c| over the sound points.

Sources: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498 (median, trimmed mean);
Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NeurIPS 2017 (Krum); Pillutla, Kakade, Harchaoui, "Robust
Aggregation for Federated Learning", IEEE Transactions on Signal Processing 2022, arXiv
1912.13445 (geometric median by the smoothed Weiszfeld algorithm).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
STEPS = 1000  # of Weiszfeld's algorithm, each of n^2 operations
TOLERANCE = 1e-10
SMOOTHING = 1e-8  # distances below this fraction of the typical one count as it


def shortening(lengths: NDArray[np.floating[Any]], most: float) -> Floats:
    """Return the factors (n, ...), at most 1, that bring the ``lengths`` (n, ...) of n
    vectors within ``most`` times their median; 1 where that is 0.

    With more than half of the vectors sound, the median is between sound lengths, so no
    other vector is longer in the result than ``most`` times a sound one.
    """
    limit = np.broadcast_to(most * np.median(lengths, axis=0), lengths.shape)
    over = (lengths > limit) & (limit > 0)
    return np.asarray(np.divide(limit, lengths, out=np.ones(lengths.shape), where=over))


def median(points: Points) -> Floats:
    """Return the median of each coordinate of ``points`` (n, d); for even n, the mean
    of the two values in the middle.
    """
    return np.asarray(np.median(_checked(points, 1), axis=0))


def trimmed_mean(points: Points, f: int) -> Floats:
    """Return the mean of each coordinate without its ``f`` least and ``f`` greatest
    values.
    """
    x = _checked(points, 2 * f + 1, f)
    if not f:
        return np.asarray(x.mean(axis=0))
    return np.asarray(np.partition(x, (f, len(x) - f - 1), axis=0)[f : len(x) - f].mean(axis=0))


def multi_krum(points: Points, f: int, count: int | None = None) -> NDArray[np.int64]:
    """Return the positions of the ``count`` (default n - f) points of least score,
    ascending; Krum is ``count`` = 1.

    A point's score is the sum of its squared distances to the n - f - 2 points nearest
    to it.
    """
    x = _checked(points, 2 * f + 3, f)
    n = len(x)
    count = n - f if count is None else count
    if not 1 <= count <= n - f:
        raise ValueError(f"count = {count}: of {n} points, {f} of them outliers, choose 1..{n - f}")
    squares = distances(x) ** 2
    np.fill_diagonal(squares, np.inf)  # a point is no neighbour of itself
    scores = np.sort(squares, axis=1)[:, : n - f - 2].sum(axis=1)
    return np.sort(np.argsort(scores, kind="stable")[:count])


def geometric_median(points: Points) -> Floats:
    """Return the point whose distances to all ``points`` have the least sum."""
    x = _checked(points, 1)
    return np.asarray(median_weights(x) @ x)


def median_weights(points: Points) -> Floats:
    """Return the weights (n,), summing to 1, by which the geometric median is a mean of
    the points (n, d).

    Weiszfeld's steps only need the distances between points. They start at the point
    with the least sum of distances, and positions are relative to it: outliers of any
    size then leave the sound points their precision.
    """
    x = _checked(points, 1)
    apart = distances(x)
    first = int(np.argmin(apart.sum(axis=1)))
    typical = float(np.median(apart[first]))
    if not apart[first].any():
        return np.full(len(x), 1 / len(x))
    least = SMOOTHING * (typical or float(apart[first][apart[first] > 0].min()))
    relative = x - x[first]
    inner = relative @ relative.T
    weights = np.zeros(len(x))
    weights[first] = 1.0
    for _ in range(STEPS):
        half = inner @ weights
        squares = np.diag(inner) - 2 * half + weights @ half
        new = 1 / np.maximum(np.sqrt(np.maximum(squares, 0.0)), least)
        new /= new.sum()
        step = new - weights
        weights = new
        if float(step @ inner @ step) <= (TOLERANCE * (typical or least)) ** 2:
            break
    return weights


def distances(points: Floats) -> Floats:
    """Return the distances (n, n) between points. They are computed from differences,
    so that outliers do not reduce the precision of the others.
    """
    out = np.zeros((len(points), len(points)))
    for i, point in enumerate(points[:-1]):
        out[i, i + 1 :] = out[i + 1 :, i] = np.linalg.norm(points[i + 1 :] - point, axis=1)
    return out


def _checked(points: Points, least: int, f: int = 0) -> Floats:
    x = np.asarray(points, np.float64)
    if x.ndim != 2 or f < 0 or len(x) < least or not np.isfinite(x).all():
        raise ValueError(
            f"need at least {least} finite points as rows (n, d) for f = {f} >= 0, got the shape "
            f"{x.shape}"
        )
    return x
