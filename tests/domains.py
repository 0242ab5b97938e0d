"""One domain of every kind and shape, small enough to enumerate: polytopes, and those
with a curved boundary.
"""

from fedapps.algorithms.frank_wolfe.domain import Product
from fedapps.algorithms.frank_wolfe.matrix_domains import (
    Birkhoff,
    GroupL1,
    NuclearBall,
    Spectrahedron,
)
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball, L2Ball

POLYTOPES = [
    L1Ball(6, 2.5),
    L1Ball((2, 3), 0.5),
    L1Ball(1, 2.0),
    GroupL1((3, 2), 1.5),
    GroupL1((1, 3), 2.0),
    Birkhoff((4, 4)),
    Birkhoff((1, 1)),
    Product((L1Ball((2, 2), 1.5), GroupL1((2, 2), 1.0), Birkhoff((2, 2)))),
]
ROUND = [
    L2Ball(5, 2.0),
    L2Ball((2, 3), 0.1),
    NuclearBall((4, 3), 5.0, tolerance=1e-9),
    NuclearBall((3, 6), 0.5, tolerance=1e-9),
    NuclearBall((1, 4), 2.0, tolerance=1e-9),
    Spectrahedron((5, 5), 2.0, tolerance=1e-9),
    Spectrahedron((1, 1)),
    Product((L2Ball(3, 1.0), NuclearBall((2, 3), 2.0, tolerance=1e-9))),
]
ALL = POLYTOPES + ROUND
