"""Groups of clients whose models are alike: k-means of points, from starts that are far
apart.

Sources: Gonzalez, "Clustering to minimize the maximum intercluster distance",
Theoretical Computer Science 38, 1985, doi 10.1016/0304-3975(85)90224-5 (farthest-first
starts); Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information
Theory 28, 1982, doi 10.1109/TIT.1982.1056489.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Lloyd's steps end by themselves; rounding could make two groupings alternate.
MOST_STEPS = 100


def farthest_first(points: Floats, k: int) -> list[int]:
    """Return the rows of k of the points (n, d), n >= k: first the farthest from the
    mean, then each time the one farthest from those chosen.
    """
    distances = _squares(points, points.mean(0, keepdims=True))[:, 0]
    chosen: list[int] = []
    for _ in range(k):
        chosen.append(int(np.argmax(distances)))
        new = _squares(points, points[chosen[-1:]])[:, 0]
        distances = new if len(chosen) == 1 else np.minimum(distances, new)
        distances[chosen] = -1.0  # equal points: another row, not the same one again
    return chosen


def grouped(points: Floats, k: int) -> NDArray[np.int64]:
    """Return the group 0..k-1 of each of the points (n, d): Lloyd's k-means from
    :func:`farthest_first`. Every group has a point. Raises ``ValueError`` if n < k.
    """
    if len(points) < k:
        raise ValueError(f"{k} groups of {len(points)} points: there must be as many points")
    starts = farthest_first(points, k)
    centres, groups = points[starts], np.full(len(points), -1)
    for _ in range(MOST_STEPS):
        new = _squares(points, centres).argmin(1)
        for j in range(k):  # an empty group keeps its first point
            if not (new == j).any():
                new[starts[j]] = j
        if (new == groups).all():
            break
        groups = new
        centres = np.stack([points[groups == j].mean(0) for j in range(k)])
    return groups.astype(np.int64)


def _squares(points: Floats, centres: Floats) -> Floats:
    """Return the squared distances (n, k)."""
    return np.stack([((points - centre) ** 2).sum(1) for centre in centres], 1)
