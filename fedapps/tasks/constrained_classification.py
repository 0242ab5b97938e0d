"""Task ``constrained-classification``: a torch classifier with a norm-ball constraint
on each layer (sparse or low-rank networks).
"""

from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.frank_wolfe.domain import Array, Domain, Product
from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball, L2Ball
from fedapps.clients.base.training import trainable
from fedapps.clients.families.problems import Problem
from fedapps.clients.families.torch_problem import TorchProblem
from fedapps.errors import UserError
from fedapps.tasks.classification import Classification
from fedapps.tasks.convex import NON_ZERO
from fedapps.tasks.options import ConstraintOptions


class ConstrainedClassification(Classification):
    """Classification with one ball per layer; the initial model is projected onto the
    balls.
    """

    name = "constrained-classification"
    lambda_0 = (1e-3, 1e-3)
    curvature = 0.0
    learning_rate = 0.1
    options: ConstraintOptions

    @cached_property
    def domain(self) -> Domain:
        """The product of the layers' balls; a convolution is a matrix with one row per
        output channel.
        """
        return Product(
            tuple(self._ball(tuple(p.shape)) for p in trainable(self.work_model()).values())
        )

    def _ball(self, shape: tuple[int, ...]) -> Domain:
        o = self.options
        if o.ball == "nuclear" and len(shape) > 1:
            return NuclearBall((shape[0], prod(shape[1:])), o.radius)
        return L1Ball(shape, o.radius) if o.ball == "l1" else L2Ball(shape, o.radius)

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the initial model, each layer projected onto its ball."""
        arrays = super().initial_arrays()
        names = list(trainable(self.work_model()))
        if list(arrays) != names:
            raise UserError(
                f"model.name = {self.context.model.name!r}: has buffers (batch norm?), which have "
                "no domain: choose a model without"
            )
        row = self.domain.project(np.concatenate([array.ravel() for array in arrays.values()]))
        return dict(zip(names, self.domain.split(row.astype(np.float32)), strict=True))

    def problem(self, client_id: int | str, num_clients: int) -> Problem:
        """Return a client's f_i, its mean training loss."""
        return TorchProblem(
            self.work_model(), self.client_data(client_id, num_clients), self.objective
        )

    def preparation(self) -> None:
        """Return ``None``: nothing is asked before the first step."""

    def measure(self, x: Array, means: Any, num_clients: int) -> dict[str, float]:
        """Return the number of non-zero weights, or for nuclear balls the sum of the
        layers' ranks.
        """
        layers = self.domain.split(x)
        if self.options.ball == "nuclear":
            sizes = [np.linalg.svd(layer, compute_uv=False) for layer in layers if layer.ndim > 1]
            return {"rank": float(sum((size > NON_ZERO * size[0]).sum() for size in sizes))}
        return {
            "non-zeros": float(
                sum((np.abs(layer) > NON_ZERO * np.abs(layer).max()).sum() for layer in layers)
            )
        }
