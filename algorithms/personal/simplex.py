"""Points of a simplex for clients: those whose updates are alike get neighbouring ones.

Source: Grinwald, Wiesner, Nakajima, "Federated Learning over Connected Modes", NeurIPS
2024, arXiv 2403.03333, Section 3 (projection of the gradient signals). The updates are
projected on their principal axes, then on the simplex: beta(z) is the nearest point to
kappa with entries >= 0 that sum to z, divided by z. Of the values of z, that with the
least Riesz energy, ``sum 1 / |beta_i - beta_j|^2``, spreads the clients most.

Here z is taken in units of the largest |kappa|, so that the points do not depend on the
scale of the updates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.mirror import project_simplex

Floats = NDArray[np.float64]
#: z in units of the largest |kappa|.
SCALES = np.geomspace(1e-3, 10, 200)
#: Points nearer than this count as this far apart, so that equal ones do not decide.
NEAREST = 1e-4
#: Of more clients, as many, evenly spaced, decide on axes and scale: their distances
#: and the decomposition grow with the square of the number.
MOST = 500


@dataclass(frozen=True)
class Projection:
    """Of an update (d,) on a simplex with M corners: ``mean`` (d,), ``axes`` (M, d) and
    the chosen ``z``.
    """

    mean: Floats
    axes: Floats
    z: float

    @classmethod
    def of(cls, signals: Floats, corners: int) -> "Projection":
        """Return that of clients' updates (n, d), n >= 1, on ``corners`` corners. If
        there are fewer axes than corners, the others are 0.
        """
        signals = signals[np.linspace(0, len(signals) - 1, min(len(signals), MOST)).astype(int)]
        mean = signals.mean(0)
        _, sizes, rows = np.linalg.svd(signals - mean, full_matrices=False)
        axes = np.zeros((corners, signals.shape[1]))
        used = min(corners, int((sizes > 1e-9 * max(sizes.max(), 1e-300)).sum()))
        # an axis has a sign only by convention: its largest entry is positive
        largest = np.abs(rows[:used]).argmax(1)
        axes[:used] = rows[:used] * np.sign(rows[np.arange(used), largest])[:, None]
        kappa = (signals - mean) @ axes.T
        unit = float(np.abs(kappa).max()) or 1.0
        energies = [_energy(nearest(kappa, z * unit)) for z in SCALES]
        return cls(mean, axes, float(SCALES[int(np.argmin(energies))]) * unit)

    def points(self, signals: Floats) -> Floats:
        """Return the points (n, M) of updates (n, d); each sums to 1."""
        return nearest((signals - self.mean) @ self.axes.T, self.z)


def nearest(points: Floats, z: float) -> Floats:
    """Return the nearest points (n, M) with entries >= 0 that sum to z, divided by
    z.
    """
    return np.stack([project_simplex(point) for point in points / z])


def _energy(points: Floats) -> float:
    first, second = np.triu_indices(len(points), 1)
    distances = np.linalg.norm(points[first] - points[second], axis=1)
    return float((1 / np.maximum(distances, NEAREST) ** 2).sum())
