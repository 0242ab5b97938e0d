"""Distillation of an ensemble of networks into one network on unlabelled public points.

Minimises ``sum_x || h_theta(x) - (teacher)(x) ||^2`` over the points x of a public set
with Adam. The teacher is a combination of outputs (logits), so it can be evaluated
exactly, once, network by network.

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, equation (17).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapps.algorithms.boosting.fit_options import DistillOptions as DistillOptions, FitOptions
from fedapps.algorithms.boosting.regression import fit_network
from fedapps.algorithms.common.modules import Arrays, get_arrays, outputs_of, set_arrays


class Distiller:
    """Distils into ``module`` on the public points ``inputs`` (m, ...); both must be on
    the same device.
    """

    def __init__(self, module: nn.Module, inputs: Tensor) -> None:
        if not len(inputs):
            raise ValueError("no public points: distillation needs at least one")
        self.module, self.inputs = module, inputs

    def outputs(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        """Return the outputs (m, ...) of the network with parameters ``arrays``."""
        set_arrays(self.module, arrays)
        return outputs_of(self.module, self.inputs)

    def distil(
        self,
        start: Sequence[NDArray[Any]],
        targets: Tensor,
        options: FitOptions,
        generator: np.random.Generator,
    ) -> tuple[Arrays, float]:
        """Fit the network to ``targets`` (m, ...) from ``start``; return its arrays and
        the mean loss of the last epoch.
        """
        set_arrays(self.module, start)
        loss = fit_network(self.module, self.inputs, targets, options, generator)
        return get_arrays(self.module), loss
