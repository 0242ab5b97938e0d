"""Minima on the simplex by a general solver, for the tests of projections and weight
rules.
"""

import numpy as np
from scipy.optimize import minimize


def least_on_simplex(objective, slope, bounds):
    """Return the point of the simplex within ``bounds``, pairs of a lower and an upper
    one, at which ``objective`` with the gradient ``slope`` is least.
    """
    optimum = minimize(
        objective,
        np.full(len(bounds), 1 / len(bounds)),
        jac=slope,
        bounds=bounds,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert abs(optimum.x.sum() - 1) < 1e-6
    return optimum.x
