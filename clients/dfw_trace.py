"""Client of DFW-Trace: one product of its gradient with the server's vector. Stateless;
evaluations carry no gradient.

Source: Zheng, Bellet, Gallinari, "A Distributed Frank-Wolfe Framework for Learning
Low-Rank Matrices with the Trace Norm", Machine Learning 107, 2018, DOI
10.1007/s10994-018-5713-5, Algorithm 2.
"""

from typing import Any

import numpy as np

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import DFWTraceSent, PhaseSent
from fedapps.algorithms.frank_wolfe.domain import Array
from fedapps.algorithms.frank_wolfe.power_iteration import product
from fedapps.clients.base.options import Config
from fedapps.clients.families.problems import ConstrainedClient


class DFWTraceClient(ConstrainedClient):
    """Client of DFW-Trace."""

    reads = (DFWTraceSent,)
    _vector: Array

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Separate the point from the vector, which comes last."""
        if PhaseSent.from_config(config).phase is None:
            *parameters, self._vector = parameters
        return super().fit(parameters, config)

    def step(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Return G_i v or G_i' u, and <G_i, x>."""
        gradient = self.problem.gradient(x_bar)
        inner = (
            gradient.inner(x_bar) if hasattr(gradient, "inner") else float(np.vdot(gradient, x_bar))
        )
        return [
            product(self.domain, gradient, DFWTraceSent.from_config(config).side, self._vector)
        ], {"inner": inner}

    def report(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Return f_i and further metrics at x."""
        return [], {"loss": self.problem.value(x_bar), **self.problem.score(x_bar)}
