"""A net's training loss as the objective of a constrained problem."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from fedapps.algorithms.frank_wolfe.domain import Array
from fedapps.clients.base.data import ClientData
from fedapps.clients.base.evaluation import CLASSIFICATION, Objective
from fedapps.clients.base.training import trainable


class TorchProblem:
    """The mean training loss of a torch model as a function of its parameters,
    flattened and concatenated into one row.

    ``model``: overwritten before use, so the clients of a process may share it; it must
    have no buffers (batch norm), which an oracle could not update.
    """

    def __init__(
        self, model: torch.nn.Module, data: ClientData, objective: Objective = CLASSIFICATION
    ) -> None:
        if list(model.buffers()):
            raise ValueError(
                f"{type(model).__name__} has buffers (batch norm?), which have no domain: choose a "
                "model without"
            )
        self.model, self.data, self.objective = model, data, objective
        self.parameters = list(trainable(model).values())
        self.num_examples = len(data.train)

    def value(self, x: Array) -> float:
        """Return the mean training loss."""
        self._set(x)
        with torch.no_grad():
            return float(self.objective.loss(self.model(self.data.train.x), self.data.train.y))

    def gradient(self, x: Array) -> Array:
        """Return the gradient on all samples, as one row."""
        return self.batch_gradient(x, np.arange(self.num_examples))

    def batch_gradient(self, x: Array, rows: NDArray[np.int64]) -> Array:
        """Return the gradient on the samples ``rows``, as one row."""
        self._set(x)
        at = torch.from_numpy(rows).to(self.data.train.y.device)
        loss = self.objective.loss(self.model(self.data.train.x[at]), self.data.train.y[at])
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients]).cpu().numpy()

    def score(self, x: Array) -> Mapping[str, float]:
        """Return the metrics on the test samples; the test loss is named ``test-loss``,
        since ``loss`` is the training loss.
        """
        self._set(x)
        scores = self.objective.score(self.model, self.data.test)
        return {("test-loss" if name == "loss" else name): value for name, value in scores.items()}

    def _set(self, x: Array) -> None:
        row = torch.tensor(x)
        pieces = row.split([p.numel() for p in self.parameters])
        self.model.eval()  # no dropout: the gradient is that of one function
        with torch.no_grad():
            for p, piece in zip(self.parameters, pieces, strict=True):
                p.copy_(piece.view(p.shape))
