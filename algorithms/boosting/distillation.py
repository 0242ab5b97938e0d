"""Distillation: the outputs of several networks at unlabelled points become one network.

Source: Shen, Hassani, Karbasi, Chen 2022, "Federated Functional Gradient Boosting", equation (17):
``min_theta sum_x || h_theta(x) - (teacher)(x) ||^2`` over the points x of a public set, with Adam. The teacher is a combination of
outputs (logits), so it is exact to evaluate it network by network, once, and to keep its outputs: (m, classes) numbers, however many
networks there were.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from algorithms.boosting.fit_options import DistillOptions as DistillOptions
from algorithms.boosting.fit_options import FitOptions
from algorithms.boosting.regression import fit_network
from algorithms.common.modules import Arrays, get_arrays, outputs_of, set_arrays


class Distiller:
    """A network to work in and the public points ``inputs`` (m, ...), on one device."""

    def __init__(self, module: nn.Module, inputs: Tensor) -> None:
        if not len(inputs):
            raise ValueError("no public points: distillation needs at least one")
        self.module, self.inputs = module, inputs

    def outputs(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        """Return the outputs (m, ...) of the network with these arrays."""
        set_arrays(self.module, arrays)
        return outputs_of(self.module, self.inputs)

    def mean_outputs(self, models: Iterable[Sequence[NDArray[Any]]]) -> Tensor:
        """Return the mean outputs (m, ...) of several networks, evaluated one after the other."""
        total, count = None, 0
        for arrays in models:
            out = self.outputs(arrays)
            total, count = (out if total is None else total.add_(out)), count + 1
        if total is None:
            raise ValueError("the mean of no networks: give at least one")
        return total.div_(count)

    def distil(
        self, start: Sequence[NDArray[Any]], targets: Tensor, options: FitOptions, generator: np.random.Generator
    ) -> tuple[Arrays, float]:
        """Return the network that, from ``start``, was fitted to ``targets`` (m, ...), and the mean loss of the last pass."""
        set_arrays(self.module, start)
        loss = fit_network(self.module, self.inputs, targets, options, generator)
        return get_arrays(self.module), loss
