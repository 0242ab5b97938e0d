"""The oracle of the nuclear-norm ball and the spectrahedron, split into products with
one vector at a time.

If every client holds a part of a gradient G = sum_i G_i, the server adds up the
products of the parts; between two products it only normalises the sum. So the oracle
runs although no gradient is sent, not even that of a part.

Source: Zheng, Bellet, Gallinari, "A Distributed Frank-Wolfe Framework for Learning
Low-Rank Matrices with the Trace Norm", Machine Learning 107, 2018, DOI
10.1007/s10994-018-5713-5, Algorithm 2.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import check_range
from fedapps.algorithms.frank_wolfe.domain import Atom, Domain, Float64, RankOne, SymmetricRankOne
from fedapps.algorithms.frank_wolfe.matrix_domains import (
    Spectrahedron,
    Spectral,
    as_operator,
    first_axis,
    generic_vector,
)

RIGHT, LEFT = "right", "left"
# Weight of a generic vector that is added to the last one (weight 1) after a step. A
# step along an exact singular pair of G leaves it one: an iteration that begins there
# would never see that another has become the largest.
FRESH = 0.1


def product(domain: Domain, gradient: Any, side: str, vector: NDArray[Any]) -> Float64:
    """Return ``G v`` (``right``) or ``G' u`` (``left``) of a gradient, an array or an
    operator, in double precision.
    """
    g = as_operator(domain, gradient)
    return np.asarray(g.matvec(vector) if side == RIGHT else g.rmatvec(vector), np.float64)


class PowerIteration:
    """Asks for one product after the other (``side``, ``vector``), and turns every
    ``iterations``-th iteration into an atom.

    For a spectrahedron, the oracle needs the eigenvector of the smallest eigenvalue of
    G, which is that of the largest eigenvalue of ``c I - G``. c is the largest ``||G
    v||`` so far. If c is below the mean of the extreme eigenvalues, the iteration runs
    to the other end of the spectrum, and c grows on the way. Raises ``ValueError`` for
    another domain.
    """

    def __init__(self, domain: Domain, iterations: int = 1) -> None:
        if not isinstance(domain, Spectral):
            raise ValueError(
                f"{type(domain).__name__} has no power iteration: choose a nuclear-norm ball, or "
                "method = 'fedfw'"
            )
        check_range("power-iterations", iterations, 1)
        self.domain, self.iterations = domain, iterations
        self.symmetric = isinstance(domain, Spectrahedron)
        self.side = RIGHT
        self.vector: Float64 = generic_vector(domain.shape[1])
        # -<G, atom> of the last atom: radius times the singular value, or less the
        # eigenvalue
        self.value = 0.0
        self._other: Float64 = np.zeros(0)  # u, while G'u is asked for
        self._done = 0
        self._shift = 0.0

    @property
    def size(self) -> int:
        """The length of the next product."""
        return self.domain.shape[0 if self.side == RIGHT else 1]

    def take(self, total: Float64) -> Atom | None:
        """Take the product with G; return an atom if it completes ``iterations``
        iterations, otherwise ``None``.
        """
        norm = float(np.linalg.norm(total))
        if self.symmetric:
            return self._take_symmetric(total, norm)
        if self.side == RIGHT:
            self._other = total / norm if norm else first_axis(self.size)
            self.side, self.vector = LEFT, self._other
            return None
        u, v = self._other, total / norm if norm else first_axis(self.size)
        self.side, self.vector = RIGHT, v
        self.value = self.domain.radius * norm  # u'G v for v = G'u / ||G'u||
        return self._every(RankOne(u, v, -self.domain.radius))

    def _take_symmetric(self, total: Float64, norm: float) -> Atom | None:
        v = self.vector
        self.value = -self.domain.radius * float(v @ total)
        self._shift = max(norm, self._shift)
        moved = self._shift * v - total
        size = float(np.linalg.norm(moved))
        # No length: v is an eigenvector with eigenvalue c, the wrong end of the
        # spectrum.
        self.vector = moved / size if size > 1e-12 * self._shift else generic_vector(len(v))
        return self._every(SymmetricRankOne(v, v, self.domain.radius))

    def _every(self, atom: Atom) -> Atom | None:
        self._done = (self._done + 1) % self.iterations
        if self._done:
            return None
        self.vector = self.vector + FRESH * generic_vector(len(self.vector))
        self.vector /= np.linalg.norm(self.vector)
        return atom

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return vectors and counters."""
        numbers = np.array([self.side == LEFT, self.value, self._done, self._shift])
        return {"vector": np.array(self.vector), "other": self._other, "numbers": numbers}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.vector, self._other = state["vector"], state["other"]
        left, self.value, done, self._shift = (float(value) for value in state["numbers"])
        self.side, self._done = LEFT if left else RIGHT, int(done)
