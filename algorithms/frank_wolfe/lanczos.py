"""Lanczos' method for the smallest eigenvalue of a large symmetric matrix given by its
matrix-vector products.

Full orthogonalisation, no restarts: a few dozen products suffice for the accuracy of a
Frank-Wolfe step, fewer with a warm start.

Source: Golub, Van Loan, "Matrix Computations", 4th edition, Johns Hopkins University
Press 2013, section 10.1.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

CHECK_EVERY = 3  # steps between two convergence checks, each of which solves the small eigenproblem


@lru_cache(maxsize=32)
def generic_vector(size: int) -> Float64:
    """Return a fixed pseudo-random unit vector: in general no eigenvector is orthogonal
    to it, and no entry is 0.
    """
    vector = np.random.default_rng(size).normal(size=size)
    vector /= np.linalg.norm(vector)
    vector.setflags(write=False)
    return vector


def smallest_eigenvector(
    product: Callable[[Float64], NDArray[Any]], start: Float64, tolerance: float, max_steps: int
) -> tuple[float, Float64, int]:
    """Return the smallest eigenvalue theta of a symmetric S (n, n), its unit
    eigenvector y (n,) and the number of products.

    ``product(v)`` returns ``S v``. Stops once ``||S y - theta y|| <= tolerance *
    |largest Ritz value|``, or after ``max_steps`` products. Raises ``ValueError`` if a
    product is not finite.
    """
    size = len(start)
    steps = min(max_steps, size)
    basis = np.empty((steps, size))
    projected = np.zeros((steps, steps))  # S in the basis: tridiagonal
    basis[0] = start / np.linalg.norm(start)
    for k in range(steps):
        image = np.asarray(product(basis[k]), np.float64)
        along = basis[: k + 1] @ image
        if not np.isfinite(along).all():
            raise ValueError("the gradient has entries that are not finite")
        projected[k, k] = along[k]
        # against all, not only the last two: rounding would bring back converged
        # vectors
        image -= along @ basis[: k + 1]
        rest = float(np.linalg.norm(image))
        scale = float(np.abs(projected[: k + 1, : k + 1]).max())
        # the second: the Krylov space of the start is exhausted
        last = k + 1 == steps or rest <= 1e-14 * scale
        if last or (k + 1) % CHECK_EVERY == 0:
            values, vectors = np.linalg.eigh(projected[: k + 1, : k + 1])
            if last or rest * abs(vectors[k, 0]) <= tolerance * np.abs(values).max():
                best = vectors[:, 0] @ basis[: k + 1]
                return float(values[0]), best / np.linalg.norm(best), k + 1
        projected[k, k + 1] = projected[k + 1, k] = rest
        basis[k + 1] = image / rest
    raise AssertionError("unreachable")
