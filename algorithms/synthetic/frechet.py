"""The Fréchet distance between two samples of features, each modelled as a normal
distribution.

``|m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2))``. With features of the Inception net it
is known as FID; with those of any other net it is not, and values from different nets
or sample sizes are not comparable.

Source: Dowson, Landau, "The Fréchet Distance between Multivariate Normal
Distributions", Journal of Multivariate Analysis, 1982, DOI
10.1016/0047-259X(82)90077-X.
"""

import numpy as np
from numpy.typing import NDArray


def frechet_distance(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Return the distance between features (m, d) and (n, d), m, n >= 2, using sample
    covariances (divisors m - 1, n - 1).
    """
    if min(len(first), len(second)) < 2:
        raise ValueError(f"{len(first)} and {len(second)} samples: a covariance needs at least 2")
    means = [np.mean(part, axis=0, dtype=np.float64) for part in (first, second)]
    covariances = [
        np.atleast_2d(np.cov(np.asarray(part, np.float64), rowvar=False))
        for part in (first, second)
    ]
    root = _root(covariances[0])
    # The eigenvalues of S1 S2 are those of the symmetric S1^(1/2) S2 S1^(1/2), which
    # stay real despite rounding.
    cross = np.sqrt(np.clip(np.linalg.eigvalsh(root @ covariances[1] @ root), 0, None)).sum()
    spread = np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * cross
    return max(0.0, float(np.sum((means[0] - means[1]) ** 2) + spread))


def _root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T)
